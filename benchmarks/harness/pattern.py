"""Inputs whose reduction is exact in any order, so that every element of a result can be checked for equality.

Floating-point addition is not associative: a checker either allows an error, and misses a flipped low bit, or knows
what the sum must be. Here all contributions to one element are multiples of one power of two, and their absolute
values add up to no more than the format's integers go: so no partial sum is ever rounded, whatever the order, the
grouping, or the number of times that partial results are stored. Products multiply signed powers of two, and one
rank's full significand. Integers and booleans are exact (modulo their width) for any values.

Element ``i`` of every pattern equals element ``i % PERIOD``. The period is a prime, so data that was moved by a
multiple of a chunk, a slot or a page does not look right by chance; and a pattern costs the same for any size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

PERIOD = 65521
"""Elements after which a pattern repeats: the largest prime below 2^16."""

Array = NDArray[Any]
Words = NDArray[np.uint64]
Reals = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Element:
    """An element type, as the command line names it.

    ``storage`` is the NumPy dtype that holds it: the type itself, or an unsigned integer of its width where NumPy has
    no such type. ``torch`` then names torch's dtype. A float has ``digits`` bits of significand, and normal numbers
    from ``2**low`` to below ``2**(high + 1)``.
    """

    name: str
    storage: str
    digits: int = 0
    low: int = 0
    high: int = 0
    torch: str = ""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of buffers."""
        return np.dtype(self.storage)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def kind(self) -> str:
        """``b``ool, ``i``nteger (signed or not), ``f``loat or ``c``omplex."""
        if self.torch:
            return "f"
        return "i" if self.dtype.kind == "u" else self.dtype.kind

    @property
    def work(self) -> np.dtype[Any]:
        """The dtype in which values are computed: float32 for narrower floats, as the engine does."""
        return np.dtype("float32") if self.kind == "f" and self.itemsize < 4 else self.dtype

    def encode(self, values: Array) -> Array:
        """Values in ``work`` as elements in ``storage``, rounded to nearest even."""
        if not self.torch:
            return values.astype(self.dtype)
        if self.torch == "bfloat16":
            bits = values.view(np.uint32)
            rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
            return np.asarray(rounded >> np.uint32(16), np.uint16)
        import torch

        narrow = torch.from_numpy(values).to(getattr(torch, self.torch))
        return np.asarray(narrow.view(torch.uint8).numpy())


ELEMENTS = {
    element.name: element
    for element in (
        Element("int8", "int8"),
        Element("uint8", "uint8"),
        Element("int16", "int16"),
        Element("uint16", "uint16"),
        Element("int32", "int32"),
        Element("uint32", "uint32"),
        Element("int64", "int64"),
        Element("uint64", "uint64"),
        Element("half", "float16", 11, -14, 15),
        Element("bfloat16", "uint16", 8, -126, 127, "bfloat16"),
        Element("float", "float32", 24, -126, 127),
        Element("double", "float64", 53, -1022, 1023),
        Element("complex64", "complex64", 24, -126, 127),
        Element("complex128", "complex128", 53, -1022, 1023),
        Element("bool", "bool"),
        Element("f8e4m3fn", "uint8", 4, -6, 7, "float8_e4m3fn"),
        Element("f8e5m2", "uint8", 3, -14, 15, "float8_e5m2"),
        Element("f8e4m3fnuz", "uint8", 4, -7, 7, "float8_e4m3fnuz"),
        Element("f8e5m2fnuz", "uint8", 3, -15, 15, "float8_e5m2fnuz"),
    )
}
"""Element types by name; nccl-tests' names where it has one."""

ALIASES = {"float16": "half", "float32": "float", "float64": "double", "bf16": "bfloat16", "fp32": "float"}

OPERATIONS = ("sum", "prod", "min", "max", "avg", "premulsum", "band", "bor", "bxor")
"""Reductions by name."""

FACTOR = 2.0
"""Every rank's factor for ``premulsum``: a power of two, so that scaling is exact too."""

_SCALES = (-20, 20)
"""Elements are scaled by powers of two in this range, cut to what the format holds."""


def reducible(element: Element, operation: str) -> bool:
    """Whether a reduction makes sense for an element type."""
    if operation in ("min", "max"):
        return element.kind != "c"
    if operation in ("band", "bor", "bxor"):
        return element.kind in "ib"
    if operation in ("avg", "premulsum"):
        return element.kind != "b"
    return operation in ("sum", "prod")


@dataclass(frozen=True)
class Pattern:
    """One crafted problem: what each of ``ranks`` ranks contributes, and what must come out.

    ``operation`` is a name from :data:`OPERATIONS`, or None where data is only moved. Raises ValueError where the
    reduction makes no sense for the element type.
    """

    element: Element
    operation: str | None
    ranks: int
    seed: int = 1

    def __post_init__(self) -> None:
        if self.operation is not None and not reducible(self.element, self.operation):
            raise ValueError(f"{self.operation} is not defined for {self.element.name}")

    def values(self, rank: int) -> Array:
        """The first PERIOD elements that ``rank`` contributes, in ``element.work``."""
        kind, work = self.element.kind, self.element.work
        if kind == "b":
            return np.asarray(self._bits(rank) & np.uint64(1) != 0)
        if kind == "i":
            return self._integers(rank).astype(work)
        if kind == "c":
            if self.operation == "prod":
                turns = np.array([1, 1j, -1, -1j])[self._noise(rank, 5) % np.uint64(4)]
                return np.asarray(self._factors(rank) * turns, work)
            return np.asarray(self._floats(rank, 0) + 1j * self._floats(rank, 8), work)
        return np.asarray(self._factors(rank) if self.operation == "prod" else self._floats(rank, 0), work)

    def block(self, rank: int) -> Array:
        """The first PERIOD elements that ``rank`` contributes, as they lie in its buffer."""
        if rank not in self._blocks:
            self._blocks[rank] = self.element.encode(self.values(rank))
        return self._blocks[rank]

    @cached_property
    def _blocks(self) -> dict[int, Array]:
        return {}

    @cached_property
    def reduced(self) -> Array:
        """The first PERIOD elements of the reduction over all ranks, as they lie in a buffer."""
        if self.operation is None:
            raise ValueError("nothing is reduced")
        total = self._scaled(self.values(0))
        with np.errstate(over="ignore"):  # integers wrap
            for rank in range(1, self.ranks):
                total = combine(self.operation, total, self._scaled(self.values(rank)))
        if self.operation == "avg":
            total = self._divided(total)
        return self.element.encode(total)

    def _scaled(self, values: Array) -> Array:
        return np.asarray(values * np.asarray(FACTOR), values.dtype) if self.operation == "premulsum" else values

    def _divided(self, total: Array) -> Array:
        if self.element.kind != "i":
            parts = total.view(total.real.dtype)  # NumPy multiplies complex numbers by a rounded 1 / n
            return np.asarray(parts / parts.dtype.type(self.ranks)).view(total.dtype)
        wide = total.astype(np.uint64 if total.dtype.kind == "u" else np.int64)
        divisor = wide.dtype.type(self.ranks)
        return np.asarray((wide - np.fmod(wide, divisor)) // divisor).astype(total.dtype)  # toward zero

    def _noise(self, rank: int, stream: int) -> Words:
        """PERIOD pseudo-random words; splitmix64 (Steele, Lea and Flood, 2014) over a counter."""
        start = ((self.seed * 64 + stream) * 1_000_003 + rank + 1) * 0x9E3779B97F4A7C15 % 2**64
        word = np.arange(PERIOD, dtype=np.uint64) * np.uint64(0xD1342543DE82EF95) + np.uint64(start)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(word ^ (word >> np.uint64(31)))

    def _signs(self, rank: int, stream: int) -> Reals:
        return np.asarray(1.0 - 2.0 * (self._noise(rank, stream) & np.uint64(1)).astype(np.float64))

    def _bits(self, rank: int) -> Words:
        """Random words; where zeros or ones absorb all others, so few of them that many ranks leave some of each."""
        boolean = self.element.kind == "b"
        ones = self.operation == "bor" or (boolean and self.operation in ("sum", "max"))
        zeros = self.operation == "band" or (boolean and self.operation in ("prod", "min"))
        if not ones and not zeros:
            return self._noise(rank, 0)
        width = 1 if boolean else 8 * self.element.itemsize
        chosen = np.uint64(1) << self._noise(rank, 1) % np.uint64(width)
        # One rank in `ranks` acts on an element, on average, and often none.
        chosen *= (self._noise(rank, 2) % np.uint64(self.ranks) == 0).astype(np.uint64)
        return np.asarray(chosen if ones else ~chosen)

    def _integers(self, rank: int) -> Array:
        if self.operation == "prod":
            return np.asarray(self._noise(rank, 0) | np.uint64(1))  # even factors would end in zero
        if self.operation != "premulsum":
            return self._bits(rank)
        # The engine scales integers in double: stay where that is exact and in range.
        bits = min(8 * self.element.itemsize - 2, 40)
        low = self._noise(rank, 0) & np.uint64(2 ** (bits - 1) - 1)
        if self.element.dtype.kind == "u":
            return np.asarray(low)
        return np.asarray(low.astype(np.int64) * self._signs(rank, 1).astype(np.int64))

    def _position(self, rank: int) -> Words:
        """This rank's place in an order of ranks that changes from element to element."""
        return np.asarray((self._noise(0, 3) % np.uint64(self.ranks) + np.uint64(rank)) % np.uint64(self.ranks))

    def _floats(self, rank: int, stream: int) -> Reals:
        """Signed integers times a power of two that all ranks share; see the module's docstring."""
        digits, limit = self.element.digits, 2**self.element.digits
        sums = self.operation in ("sum", "avg", "premulsum")
        addends = min(self.ranks, limit // 2) if sums else 1
        largest = limit // addends
        values = (self._noise(rank, stream + 1) % np.uint64(largest) + np.uint64(1)).astype(np.float64)
        values *= self._signs(rank, stream + 2)
        if sums and addends < self.ranks:  # more ranks than the format can add up exactly: the others give zero
            values *= self._position(rank) < addends
        lowest = max(self.element.low, _SCALES[0])
        highest = min(self.element.high - digits - 1, _SCALES[1])  # one to spare for FACTOR
        shared = self._noise(0, stream + 4) % np.uint64(highest - lowest + 1)
        return np.asarray(np.ldexp(values, shared.astype(np.int64) + lowest))

    def _factors(self, rank: int) -> Reals:
        """Signed powers of two, and on one rank an odd factor; few enough for every partial product to be normal."""
        reach = min(-self.element.low, self.element.high) - 1
        position = self._position(rank)
        powers = (self._noise(rank, 1) % np.uint64(3)).astype(np.int64) - 1
        powers *= position < min(self.ranks, reach)
        mantissas = 2 ** (self.element.digits - 1)
        odd = 1.0 + (self._noise(rank, 4) % np.uint64(mantissas)).astype(np.float64) / mantissas
        return np.asarray(self._signs(rank, 2) * np.ldexp(np.where(position == 0, odd, 1.0), powers))


def combine(operation: str, left: Array, right: Array) -> Array:
    """One step of a reduction, in the dtype of its arguments; booleans as torch does: sum is or, product is and."""
    boolean = left.dtype.kind == "b"
    result: Array
    if operation in ("sum", "avg", "premulsum"):
        result = left | right if boolean else left + right
    elif operation == "prod":
        result = left & right if boolean else left * right
    else:
        function = {
            "min": np.minimum,
            "max": np.maximum,
            "band": np.bitwise_and,
            "bor": np.bitwise_or,
            "bxor": np.bitwise_xor,
        }[operation]
        result = function(left, right)
    return result


def fill(buffer: Array, block: Array, start: int = 0) -> None:
    """Writes elements ``start ..`` of the pattern that ``block`` begins into a one-dimensional buffer."""
    tile = np.roll(block, -(start % PERIOD))
    whole = buffer.size // PERIOD * PERIOD
    buffer[:whole].reshape(-1, PERIOD)[:] = tile
    buffer[whole:] = tile[: buffer.size - whole]


def spoil(buffer: Array, block: Array, start: int = 0) -> None:
    """Writes something that differs from the pattern in every element: a result that nobody wrote is all wrong."""
    if block.dtype.kind == "b":
        fill(buffer, ~block, start)
        return
    flipped = ~np.ascontiguousarray(block).view(np.uint8)
    fill(buffer, flipped.view(block.dtype), start)


def count_wrong(buffer: Array, block: Array, start: int = 0) -> int:
    """Elements of ``buffer`` that differ from elements ``start ..`` of the pattern. A NaN is always wrong."""
    tile = np.roll(block, -(start % PERIOD))
    wrong = 0
    for begin in range(0, buffer.size, PERIOD):
        part = buffer[begin : begin + PERIOD]
        wrong += int(np.count_nonzero(part != tile[: part.size]))
    return wrong
