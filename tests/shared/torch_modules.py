# SPDX-License-Identifier: Apache-2.0
"""Plain torch modules of different shape, as anybody would write them; nothing in them knows of pulptrain."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it


def plain_cnn():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


class ResidualCnn(nn.Module):
    class Block(nn.Module):
        def __init__(self, before, after, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(after)
            self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(after)
            self.down = nn.Sequential()
            if stride != 1:
                self.down = nn.Sequential(nn.Conv2d(before, after, 1, stride), nn.BatchNorm2d(after))

        def forward(self, x):
            y = F.relu(self.bn1(self.conv1(x)))
            y = self.bn2(self.conv2(y))
            y += self.down(x)
            return F.relu(y)

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.layers = nn.Sequential(self.Block(8, 8, 1), self.Block(8, 16, 2))
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = self.layers(self.stem(x))
        return self.head(x.mean(dim=(2, 3)))


class SeparableCnn(nn.Module):
    """Depthwise-separable, ReLU6, Hardswish, squeeze-excite, as in MobileNetV3."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.bn = nn.BatchNorm2d(8)
        self.squeeze = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(8, 4, 1)
        self.fc2 = nn.Conv2d(4, 8, 1)
        self.project = nn.Conv2d(8, 12, 1, bias=False)
        self.head = nn.Linear(12, 4)

    def forward(self, x):
        x = F.relu6(self.stem(x))
        x = F.hardswish(self.bn(self.depthwise(x)))
        scale = F.hardsigmoid(self.fc2(F.relu(self.fc1(self.squeeze(x)))))
        x = self.project(x * scale)
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class GruClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(6, 10, num_layers=2, batch_first=True)
        self.fc = nn.Linear(10, 4)

    def forward(self, x):
        output, _ = self.gru(x)
        return self.fc(output[:, -1])


class LstmState(nn.Module):
    """Sequence first, the last state."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(5, 7)
        self.fc = nn.Linear(7, 3)

    def forward(self, x):
        _, (state, _) = self.lstm(x.transpose(0, 1))
        return self.fc(state.squeeze(0))


class Encoder(nn.Module):
    """nn.MultiheadAttention and a feed-forward part, norms first."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(12), nn.LayerNorm(12)
        self.attention = nn.MultiheadAttention(12, 3, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12))
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.mlp(self.norm2(x))
        return self.head(x.mean(1))


class HandAttention(nn.Module):
    """Attention by hand: packed projection, chunk, softmax of scaled scores, a causal mask."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)
        self.register_buffer("mask", torch.triu(torch.ones(6, 6, dtype=torch.bool), 1))

    def forward(self, x):
        samples, length, width = x.shape
        query, key, value = (
            part.view(samples, length, 2, width // 2).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        scores = query @ key.transpose(-2, -1) / math.sqrt(width // 2)
        weights = scores.masked_fill(self.mask, float("-inf")).softmax(dim=-1)
        mixed = (weights @ value).transpose(1, 2).reshape(samples, length, width)
        return self.head(x + self.out(mixed)).mean(1)


class DotAttention(nn.Module):
    """scaled_dot_product_attention, causal; RMSNorm and a gated feed-forward part."""

    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(8)
        self.q, self.k, self.v = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.gate, self.up, self.down = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        y = self.norm(x)
        heads = [f(y).unflatten(-1, (2, 4)).transpose(1, 2) for f in (self.q, self.k, self.v)]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + mixed.transpose(1, 2).flatten(2)
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


class UNet(nn.Module):
    """ConvTranspose, concatenation, upsampling: an image out."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.middle = nn.Conv2d(4, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.last = nn.Conv2d(9, 1, 1)

    def forward(self, x):
        low = torch.tanh(self.down(x))
        high = self.up(F.leaky_relu(self.middle(low), 0.1))
        smooth = F.interpolate(low, scale_factor=2, mode="bilinear", align_corners=False)
        return self.last(torch.cat([x, high, smooth], dim=1))


class Norms(nn.Module):
    """Group, instance and layer norm of images."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 6, 3)
        self.group = nn.GroupNorm(3, 6)
        self.instance = nn.InstanceNorm2d(6, affine=True)
        self.layer = nn.LayerNorm([6, 6, 6])
        self.fc = nn.Linear(216, 3)

    def forward(self, x):
        x = F.elu(self.group(self.conv(x)))
        x = F.silu(self.instance(x))
        return self.fc(self.layer(x).flatten(1))


class Functional(nn.Module):
    """Parameters of the module's own, functional forms, slicing, padding."""

    def __init__(self):
        super().__init__()
        self.filters = nn.Parameter(torch.randn(4, 2, 3, 3) * 0.2)
        self.scale = nn.Parameter(torch.rand(4, 1, 1) + 0.5)
        self.matrix = nn.Parameter(torch.randn(16, 5) * 0.2)
        self.bias = nn.Parameter(torch.zeros(5))

    def forward(self, x):
        x = F.conv2d(F.pad(x, (1, 0, 1, 0)), self.filters, stride=2)
        x = F.relu(x) * self.scale
        x = F.avg_pool2d(x[:, :, 1:, :-1], 2, stride=1)
        return x[..., :2, :2].reshape(x.shape[0], -1) @ self.matrix + self.bias


class Einsum(nn.Module):
    """einsum where it is a matmul."""

    def __init__(self):
        super().__init__()
        self.first = nn.Parameter(torch.randn(6, 8) * 0.3)
        self.second = nn.Parameter(torch.randn(3, 8) * 0.3)

    def forward(self, x):
        x = torch.tanh(torch.einsum("bli,io->blo", x, self.first))
        mixed = torch.einsum("bld,bmd->blm", x, x) / 4
        x = torch.einsum("blm,bmd->bld", mixed, x)
        return torch.einsum("od,bd->bo", self.second, x.sum(1))


class ConvNext(nn.Module):
    """Channels last between convolutions, layer scale, a 7x7 depthwise kernel."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, stride=4)
        self.depthwise = nn.Conv2d(8, 8, 7, padding=3, groups=8)
        self.norm = nn.LayerNorm(8, eps=1e-6)
        self.wide, self.narrow = nn.Linear(8, 16), nn.Linear(16, 8)
        self.gamma = nn.Parameter(torch.full((8,), 0.5))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.stem(x)
        y = self.depthwise(x).permute(0, 2, 3, 1)
        y = self.gamma * self.narrow(F.gelu(self.wide(self.norm(y))))
        x = x + y.permute(0, 3, 1, 2)
        return self.head(x.mean([-2, -1]))


class VisionTransformer(nn.Module):
    """Patches, class token, learned positions, nn.TransformerEncoderLayer."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(1, 8, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 8) * 0.1)
        self.positions = nn.Parameter(torch.randn(1, 5, 8) * 0.1)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        return self.head(self.layer(x)[:, 0])


class ConvSequence(nn.Module):
    """1D convolutions with dilation, a wave-like residual stack."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv1d(2, 6, 3, padding=1)
        self.second = nn.Conv1d(6, 6, 3, padding=2, dilation=2, groups=2)
        self.bn = nn.BatchNorm1d(6)
        self.pool = nn.MaxPool1d(2)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = x + torch.sigmoid(self.second(x)) * x
        return self.head(self.pool(self.bn(x)).mean(-1))


class ShuffleNet(nn.Module):
    """Channel split and shuffle."""

    def __init__(self):
        super().__init__()
        self.left = nn.Conv2d(4, 4, 1)
        self.right = nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        a, b = x.chunk(2, dim=1)
        x = torch.cat((self.left(a), self.right(b)), 1)
        samples, channels, height, width = x.size()
        x = x.view(samples, 2, channels // 2, height, width).transpose(1, 2).contiguous()
        x = F.relu(x.view(samples, channels, height, width))
        return self.head(F.max_pool2d(x, kernel_size=x.shape[2:]).squeeze(3).squeeze(2))


class Embedded(nn.Module):
    """Words in, log-probabilities out."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.rnn = nn.RNN(8, 6, batch_first=True)
        self.fc = nn.Linear(6, 4)

    def forward(self, x):
        _, state = self.rnn(self.words(x))
        return F.log_softmax(self.fc(state[-1]), dim=1)


class Autoencoder(nn.Module):
    """The loss is mse of the input's shape."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(30, 12), nn.Tanh(), nn.Linear(12, 4))
        self.decoder = nn.Sequential(nn.Linear(4, 12), nn.PReLU(), nn.Linear(12, 30), nn.Sigmoid())

    def forward(self, x):
        return self.decoder(self.encoder(x))


class FrozenBackbone(nn.Module):
    """Norms in evaluation mode, frozen layers, biases only in one of them."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3)
        self.bn = nn.BatchNorm2d(4).eval()
        self.conv2 = nn.Conv2d(4, 4, 3, bias=True)
        self.fc = nn.Linear(64, 4)
        for parameter in (*self.conv1.parameters(), *self.bn.parameters(), self.conv2.weight):
            parameter.requires_grad = False

    def forward(self, x):
        x = F.relu(self.bn(self.conv1(x)))
        return self.fc(F.relu(self.conv2(x)).flatten(1))


class PixelShuffle(nn.Module):
    """Super-resolution: sub-pixel convolution and a skip by nearest upsampling."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 5, padding="same")
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        y = F.pixel_shuffle(self.conv2(F.leaky_relu(self.conv1(x))), 2)
        return y + F.interpolate(x, scale_factor=2)


class NormByHand(nn.Module):
    """Statistics, division and clamping written out."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(10, 8), nn.Linear(8, 3)
        self.gain = nn.Parameter(torch.rand(8) + 0.5)

    def forward(self, x):
        x = self.fc1(x)
        mean = x.mean(-1, keepdim=True)
        spread = ((x - mean) ** 2).mean(-1, keepdim=True)
        x = self.gain * (x - mean) / torch.sqrt(spread + 1e-5)
        return self.fc2(torch.clamp(x, -1.5, 1.5).exp())


MODULES = {
    "plain_cnn": (plain_cnn, (2, 1, 8, 8)),
    "residual_cnn": (ResidualCnn, (2, 3, 8, 8)),
    "separable_cnn": (SeparableCnn, (2, 3, 12, 12)),
    "gru_classifier": (GruClassifier, (2, 7, 6)),
    "lstm_state": (LstmState, (2, 6, 5)),
    "encoder": (Encoder, (2, 6, 12)),
    "hand_attention": (HandAttention, (2, 6, 8)),
    "dot_attention": (DotAttention, (2, 5, 8)),
    "unet": (UNet, (2, 1, 8, 8)),
    "norms": (Norms, (2, 2, 8, 8)),
    "functional": (Functional, (2, 2, 9, 9)),
    "einsum": (Einsum, (2, 4, 6)),
    "convnext": (ConvNext, (1, 3, 16, 16)),
    "vision_transformer": (VisionTransformer, (2, 1, 8, 8)),
    "conv_sequence": (ConvSequence, (2, 2, 12)),
    "shuffle_net": (ShuffleNet, (2, 8, 6, 6)),
    "embedded": (Embedded, (2, 9)),
    "autoencoder": (Autoencoder, (3, 30)),
    "frozen_backbone": (FrozenBackbone, (2, 1, 8, 8)),
    "pixel_shuffle": (PixelShuffle, (1, 1, 6, 6)),
    "norm_by_hand": (NormByHand, (3, 10)),
}
"""Name -> how to make it, and the shape of its input."""


def made(name, seed=0):
    """(module, example input) of a name, initialised from a seed."""
    torch.manual_seed(seed)
    make, shape = MODULES[name]
    example = torch.randint(0, 20, shape) if name == "embedded" else torch.randn(shape)
    return make(), example
