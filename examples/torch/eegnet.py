# SPDX-License-Identifier: Apache-2.0
"""EEGNet (Lawhern et al. 2018) of 8 electrodes and 64 points of time, a one-cycle learning rate."""

import torch
from torch import nn

import pulptrain as pt

ELECTRODES, TIMES, CLASSES = 8, 64, 4


class EegNet(nn.Sequential):
    """Convolution over time, over electrodes, separable over time; dropout is off."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 4, (1, 16), padding=(0, 8), bias=False),
            nn.BatchNorm2d(4),
            nn.Conv2d(4, 8, (ELECTRODES, 1), groups=4, bias=False),
            nn.BatchNorm2d(8),
            nn.ELU(),
            nn.AvgPool2d((1, 4)),
            nn.Conv2d(8, 8, (1, 8), padding=(0, 4), groups=8, bias=False),
            nn.Conv2d(8, 8, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.ELU(),
            nn.AvgPool2d((1, 8)),
            nn.Flatten(),
            nn.Linear(16, CLASSES),
        )


def story() -> pt.Model:
    """The network as it is trained."""
    torch.manual_seed(0)
    net = EegNet()
    signals, classes = torch.randn(4, 1, ELECTRODES, TIMES), torch.randint(CLASSES, (4,))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=200)
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    return pt.from_torch(net, signals, loss, optimizer, labels=classes, lr_schedule=schedule)


if __name__ == "__main__":
    print(pt.run(story(), "pulp-open"))
