# SPDX-License-Identifier: Apache-2.0
"""DS-CNN keyword spotting learned from a larger network on the same device (Hinton et al. 2015)."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

import pulptrain as pt

WORDS, TEMPERATURE = 12, 4.0


class DsCnn(nn.Sequential):
    """Depthwise-separable convolutions on 49 x 10 MFCCs (Zhang et al. 2017)."""

    def __init__(self, channels: int, blocks: int) -> None:
        layers: list[nn.Module] = [nn.Conv2d(1, channels, (10, 4), stride=2, padding=(5, 1)), nn.ReLU()]
        for _ in range(blocks):
            layers += [nn.Conv2d(channels, channels, 3, padding=1, groups=channels), nn.ReLU()]
            layers += [nn.Conv2d(channels, channels, 1), nn.ReLU()]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, WORDS))


class Distilled(nn.Module):
    """A student beside a frozen teacher."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = DsCnn(32, 2), DsCnn(8, 1)
        self.teacher.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores of the student, and of the teacher as data."""
        return self.student(x), self.teacher(x).detach()


def distilled(student: torch.Tensor, teacher: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Half of what the words say, half of what the teacher says."""
    soft = F.kl_div(
        F.log_softmax(student / TEMPERATURE, dim=1),
        F.softmax(teacher / TEMPERATURE, dim=1),
        reduction="batchmean",
    )
    return 0.5 * F.cross_entropy(student, words) + 0.5 * TEMPERATURE**2 * soft


def story() -> pt.Model:
    """The network as it is trained."""
    torch.manual_seed(0)
    net = Distilled()
    inputs, words = torch.randn(2, 1, 49, 10), torch.randint(WORDS, (2,))
    optimizer = torch.optim.SGD(net.student.parameters(), lr=0.05, nesterov=True, momentum=0.9)
    return pt.from_torch(net, inputs, distilled, optimizer, labels=words)


if __name__ == "__main__":
    print(pt.run(story(), "pulp-open"))
