# SPDX-License-Identifier: Apache-2.0
"""A small U-Net (Ronneberger et al. 2015): a class for every pixel, cross entropy over all of them."""

import torch
from torch import nn

import pulptrain as pt


def block(before: int, after: int) -> nn.Sequential:
    """Two convolutions."""
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.Conv2d(after, after, 3, padding=1), nn.ReLU()
    )


class UNet(nn.Module):
    """Two levels down and up again, with what was seen on the way down beside what comes up."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = block(1, 4), block(4, 8), block(8, 16)
        self.pool = nn.MaxPool2d(2)
        self.up2, self.join2 = nn.ConvTranspose2d(16, 8, 2, stride=2), block(16, 8)
        self.up1, self.join1 = nn.ConvTranspose2d(8, 4, 2, stride=2), block(8, 4)
        self.head = nn.Conv2d(4, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of images [batch, 1, rows, columns]: scores [batch, classes, rows, columns]."""
        first = self.down1(x)
        second = self.down2(self.pool(first))
        x = self.bottom(self.pool(second))
        x = self.join2(torch.cat([self.up2(x), second], dim=1))
        x = self.join1(torch.cat([self.up1(x), first], dim=1))
        return self.head(x)


def story() -> pt.Model:
    """The network as it is trained."""
    torch.manual_seed(0)
    net = UNet()
    images, classes = torch.randn(1, 1, 16, 16), torch.randint(3, (1, 16, 16))
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3, momentum=0.9)
    return pt.from_torch(net, images, nn.CrossEntropyLoss(), optimizer, labels=classes)


if __name__ == "__main__":
    print(pt.run(story(), "pulp-open"))
