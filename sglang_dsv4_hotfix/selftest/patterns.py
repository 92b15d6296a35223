"""What the pools are filled with: bytes that tell every row of every buffer, on either side, from all others."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt


def fill(target: npt.NDArray[np.uint8], name: str) -> None:
    """Overwrites `target` with a sequence that depends on `name` alone and does not repeat within 32 GiB.

    A counter through a mixing function, so that two stretches of 8 bytes or more, in one buffer or in two, agree by an
    accident of 2^-64 only: a row that arrives in the wrong place is always seen.
    """
    words = -(-len(target) // 8)
    values = np.arange(words, dtype=np.uint64)
    values += np.uint64(zlib.crc32(name.encode()) << 32)
    values *= np.uint64(0x9E3779B97F4A7C15)
    values ^= values >> np.uint64(31)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(29)
    target[:] = values.view(np.uint8)[: len(target)]
