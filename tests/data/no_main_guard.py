# SPDX-License-Identifier: Apache-2.0
"""A script without a main guard: workers of the search must not run it again."""

import torch
from torch import nn

import pulptrain as pt

print("script begins", flush=True)
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 5))
print(pt.tune(pt.from_torch(net, torch.zeros(1, 3, 16, 16)), "gap9", tilings=1, steps="fw"))
