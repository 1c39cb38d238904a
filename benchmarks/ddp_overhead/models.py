"""The models that are trained, each with its batches. Weights are random, data is real.

Their shapes are those of well-known networks, scaled so that an iteration takes tenths of a second on one core. What
matters here is how many bytes of gradients there are, in how many tensors, for how much arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ddp_overhead.data import digits, tokens

SEQUENCE = 64
"""Tokens in a sequence."""
MASK = 1
"""The token that hides another."""
IGNORED = -100
"""The target of a token that is not to be predicted: cross_entropy leaves it out."""

Batch = tuple[Tensor, Tensor]
"""Inputs, and what the model should answer: class numbers, int64."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A model and its data."""

    name: str
    model: Callable[[], nn.Module]
    """Makes it; from inputs to scores, whose last dimension is classes."""
    batch: Callable[[torch.Generator], Batch]


def loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy over everything that is to be predicted."""
    return nn.functional.cross_entropy(scores.flatten(0, -2), targets.flatten(), ignore_index=IGNORED)


def cnn(width: int) -> nn.Module:
    """Two convolutions and two dense layers, from digits to ten scores."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * width, 32 * width),
        nn.ReLU(),
        nn.Linear(32 * width, 10),
    )


class Residual(nn.Module):
    """Two convolutions beside a shortcut (He et al., 2016, the basic block)."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.straight = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.shortcut = nn.Sequential()
        if before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.straight(images) + self.shortcut(images))


def resnet(width: int) -> nn.Module:
    """The 18 layers of ResNet-18 (``width`` 64), with the small stem that small images get."""
    layers: list[nn.Module] = [nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    before = width
    for stage in range(4):
        after = width << stage
        layers += [Residual(before, after, 1 if stage == 0 else 2), Residual(after, after, 1)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


class Transformer(nn.Module):
    """Tokens (int64[n, SEQUENCE]) to scores (float32[n, SEQUENCE, vocabulary]); the embedding also makes the scores.

    A decoder as GPT-2's looks back only and normalises before each part; an encoder as BERT's looks both ways and
    normalises behind it.
    """

    def __init__(self, vocabulary: int, layers: int, width: int, decoder: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(SEQUENCE, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=decoder
        )
        self.layers = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        nn.init.normal_(self.words.weight, std=0.02)
        mask = nn.Transformer.generate_square_subsequent_mask(SEQUENCE) if decoder else None
        self.register_buffer("mask", mask, persistent=False)
        self.decoder = decoder

    def forward(self, numbers: Tensor) -> Tensor:
        hidden = self.layers(self.words(numbers) + self.places, mask=self.mask, is_causal=self.decoder)
        return nn.functional.linear(hidden, self.words.weight)


def images(count: int) -> Callable[[torch.Generator], Batch]:
    """Batches of digits."""

    def batch(generator: torch.Generator) -> Batch:
        pictures, shown = digits()
        chosen = torch.randint(len(shown), (count,), generator=generator)
        return pictures[chosen], shown[chosen]

    return batch


def text(vocabulary: int, count: int, masked: bool) -> Callable[[torch.Generator], Batch]:
    """Batches of sequences: to predict a seventh of the tokens, which are masked, or each next one."""

    def batch(generator: torch.Generator) -> Batch:
        words = tokens(vocabulary)
        starts = torch.randint(len(words) - SEQUENCE, (count,), generator=generator).tolist()
        numbers = torch.stack([words[start : start + SEQUENCE + 1] for start in starts])
        if not masked:
            return numbers[:, :-1], numbers[:, 1:]
        numbers = numbers[:, :-1]
        hidden = torch.rand(numbers.shape, generator=generator) < 1 / 7
        return numbers.masked_fill(hidden, MASK), numbers.masked_fill(~hidden, IGNORED)

    return batch


def workloads(quick: bool) -> dict[str, Workload]:
    """All models by name; ``quick``: smaller ones of the same kinds."""
    if quick:
        found = [
            Workload("CNN", lambda: cnn(16), images(16)),
            Workload("ResNet", lambda: resnet(16), images(4)),
            Workload("BERT", lambda: Transformer(1024, 2, 128, decoder=False), text(1024, 1, masked=True)),
            Workload("GPT-2 small", lambda: Transformer(1024, 2, 128, decoder=True), text(1024, 1, masked=False)),
            Workload("GPT-2 large", lambda: Transformer(1024, 4, 256, decoder=True), text(1024, 1, masked=False)),
        ]
    else:
        found = [
            Workload("CNN", lambda: cnn(32), images(64)),
            Workload("ResNet", lambda: resnet(64), images(8)),
            Workload("BERT", lambda: Transformer(8192, 4, 512, decoder=False), text(8192, 4, masked=True)),
            Workload("GPT-2 small", lambda: Transformer(8192, 6, 384, decoder=True), text(8192, 4, masked=False)),
            Workload("GPT-2 large", lambda: Transformer(8192, 12, 640, decoder=True), text(8192, 1, masked=False)),
        ]
    return {workload.name: workload for workload in found}
