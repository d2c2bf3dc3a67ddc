"""A file that is read more than once, and must hold the same bytes each time."""

from __future__ import annotations

import hashlib
import io
from typing import BinaryIO

BLOCK = 1 << 20
_DIGEST = 16  # bytes; of a block of a mebibyte, so that ten gigabytes are remembered in 160 kB


class Changed(Exception):
    """The file is not what it was when it was checked."""


class SteadyFile:
    """The first reading remembers a digest of every block; no later one hands out a block that differs.

    Args:
        file: open, and seekable.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digests: bytearray | None = None

    def reading(self) -> io.BufferedReader:
        """Read the file from its beginning. The first reading must have come to the end before the next.

        Raises:
            Changed: while it is read, before any byte that differs is handed out.
        """
        self._file.seek(0)
        return io.BufferedReader(_SteadyReader(self), BLOCK)

    def _first_reading_ended(self, digests: bytearray) -> None:
        self._digests = digests


class _SteadyReader(io.RawIOBase):
    def __init__(self, steady: SteadyFile) -> None:
        super().__init__()
        self._steady = steady
        self._known = steady._digests
        self._digests = bytearray()
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override] # as it is called
        if not self._left:
            self._left = memoryview(self._next_block())
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size

    def _next_block(self) -> bytes:
        block = self._steady._file.read(BLOCK)
        at = len(self._digests)
        if block:
            self._digests += hashlib.blake2b(block, digest_size=_DIGEST).digest()
        if self._known is None:
            if not block:
                self._steady._first_reading_ended(self._digests)
        elif self._digests[at:] != self._known[at : at + _DIGEST]:
            raise Changed("the file has changed since it was checked")
        return block
