"""The frozen code table of the protocol: collectives, dtypes and reductions.

These numbers enter every record's associated data (docs/protocol.md). They may be extended, never renumbered.
``kernels/engine/codes.hpp`` is the same table for C++; ``tests/test_codes.py`` compares the two.
"""

from __future__ import annotations

from enum import IntEnum


class Collective(IntEnum):
    """What a group of ranks does together."""

    ALL_REDUCE = 1
    REDUCE_SCATTER = 2
    ALL_GATHER = 3
    BROADCAST = 4
    REDUCE = 5
    GATHER = 6
    SCATTER = 7
    ALL_TO_ALL = 8
    BARRIER = 9


class PointToPoint(IntEnum):
    """What one rank does with another; numbered together with :class:`Collective`."""

    SEND = 10
    RECEIVE = 11


class DType(IntEnum):
    """Element types; ``NONE`` is a barrier's."""

    NONE = 0
    U8 = 1
    I8 = 2
    U16 = 3
    I16 = 4
    U32 = 5
    I32 = 6
    U64 = 7
    I64 = 8
    F16 = 9
    BF16 = 10
    F32 = 11
    F64 = 12
    C64 = 13
    C128 = 14
    BOOL = 15
    F8E4M3FN = 16
    F8E5M2 = 17
    F8E4M3FNUZ = 18
    F8E5M2FNUZ = 19

    @property
    def itemsize(self) -> int:
        """Bytes of one element; 0 for ``NONE``."""
        return _ITEMSIZE[self]


_ITEMSIZE = (0, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 8, 16, 1, 1, 1, 1, 1)


class ReduceOp(IntEnum):
    """How contributions are combined; ``NONE`` where a collective only moves data."""

    NONE = 0
    SUM = 1
    AVG = 2
    PRODUCT = 3
    MIN = 4
    MAX = 5
    BAND = 6
    BOR = 7
    BXOR = 8
    PREMUL_SUM = 9
