"""Real data that needs no download: handwritten digits of scikit-learn, and words of Python's standard library."""

from __future__ import annotations

import re
import sysconfig
from collections import Counter
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

TEXT_BYTES = 2 << 20
"""How much text is read at most."""


@lru_cache(maxsize=1)
def digits() -> tuple[Tensor, Tensor]:
    """Images (float32[1797, 1, 8, 8], 0 to 1) and the digits they show (int64[1797])."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    data = load_digits()
    return torch.from_numpy(data.images).float().div(16).unsqueeze(1), torch.from_numpy(data.target)


@lru_cache(maxsize=1)
def tokens(vocabulary: int) -> Tensor:
    """The text as numbers below ``vocabulary`` (int64[n]): words and signs, the most frequent one is 2, 0 stands for
    all that are too rare, and 1 is left for a mask."""
    words: list[str] = []
    nbytes = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        words += re.findall(r"\w+|[^\w\s]", text)
        nbytes += len(text)
        if nbytes > TEXT_BYTES:
            break
    frequent = Counter(words).most_common(vocabulary - 2)
    numbers = {word: number for number, (word, _) in enumerate(frequent, 2)}
    return torch.tensor([numbers.get(word, 0) for word in words])
