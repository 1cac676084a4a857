# SPDX-License-Identifier: Apache-2.0
"""Siamese keyword spotting: one encoder on two utterances, a contrastive loss of their distance.

Hadsell, Chopra, LeCun 2006 (the loss); Zhang et al. 2017 (depthwise-separable convolutions on 49 x 10 MFCCs).
"""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

import pulptrain as pt


class Encoder(nn.Sequential):
    """An utterance as 16 numbers."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__(
            nn.Conv2d(1, channels, (10, 4), stride=2, padding=(5, 1)),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, groups=channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(channels, 16),
        )


class Siamese(nn.Module):
    """Both utterances go through the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The codes of both, [batch, 16]."""
        return self.encoder(left), self.encoder(right)


def contrastive(left: torch.Tensor, right: torch.Tensor, same: torch.Tensor) -> torch.Tensor:
    """Codes of the same word (1) are drawn together, those of others (0) pushed a distance of 1 apart."""
    distance = F.pairwise_distance(left, right)
    return (same * distance**2 + (1 - same) * F.relu(1 - distance) ** 2).mean()


def story() -> pt.Model:
    """The network as it is trained."""
    torch.manual_seed(0)
    net = Siamese()
    inputs = torch.randn(2, 1, 49, 10), torch.randn(2, 1, 49, 10)
    same = torch.tensor([1.0, 0.0])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    return pt.from_torch(net, inputs, contrastive, optimizer, labels=same)


if __name__ == "__main__":
    print(pt.run(story(), "pulp-open"))
