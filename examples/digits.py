"""Handwritten digits, 1797 images that come with scikit-learn: real data for examples, and nothing to download."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import Tensor, nn

HELD_OUT = 360
"""Images, of 1797, that are never trained on."""


def load() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images (float32[n, 1, 8, 8], 0 to 1) and digits (int64[n]) to train on, then held-out images and digits; the
    same split on every rank."""
    data = load_digits()
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(data.target)))
    images = torch.from_numpy(data.images).float().div(16).unsqueeze(1)[order]
    digits = torch.from_numpy(data.target)[order]
    return images[HELD_OUT:], digits[HELD_OUT:], images[:HELD_OUT], digits[:HELD_OUT]


def perceptron() -> nn.Sequential:
    """From an image to ten scores. The same weights in every process."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


def accuracy(scores: Tensor, digits: Tensor) -> float:
    """The fraction of digits whose score is the highest."""
    return float((scores.argmax(1) == digits).float().mean())


def claim(true: bool, text: str) -> bool:
    """Says whether something is true on every rank, once; and whether it is."""
    answer = torch.tensor(int(true))
    dist.all_reduce(answer, dist.ReduceOp.MIN)
    if dist.get_rank() == 0:
        print(f"{'✓' if answer else '✗'} {text}", flush=True)
    return bool(answer)
