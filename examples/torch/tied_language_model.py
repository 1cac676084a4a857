# SPDX-License-Identifier: Apache-2.0
"""A language model of words whose table is also its last layer (Press and Wolf 2017)."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

import pulptrain as pt

WORDS, WIDTH, LENGTH = 48, 32, 16


class LanguageModel(nn.Module):
    """Scores of the next word at every place."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.place = nn.Parameter(torch.randn(LENGTH, WIDTH) / 10)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.widen, self.narrow = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.table.weight
        nn.init.normal_(self.table.weight, std=0.1)
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), float("-inf")).triu(1))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Of words [batch, length]: scores [batch, length, words]."""
        x = self.table(words) + self.place
        y = self.norm1(x)
        x = x + self.attention(y, y, y, attn_mask=self.mask, need_weights=False)[0]
        x = x + self.narrow(F.gelu(self.widen(self.norm2(x))))
        return self.head(x)


def next_word(scores: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Cross entropy over all places."""
    return F.cross_entropy(scores.transpose(1, 2), following)


def story() -> pt.Model:
    """The network as it is trained."""
    torch.manual_seed(0)
    net = LanguageModel()
    text = torch.randint(WORDS, (1, LENGTH + 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
    return pt.from_torch(net, text[:, :-1], next_word, optimizer, labels=text[:, 1:])


if __name__ == "__main__":
    print(pt.run(story(), "pulp-open"))
