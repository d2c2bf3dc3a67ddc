"""A response's body as it comes in: decompressed here, and never more of it than the limit.

Not left to aiohttp, whose older versions unpack a whole chunk at once (a thousandfold of what came
in), and which does not tell a compressed body that was cut from one that is complete.
"""

from __future__ import annotations

import zlib

import aiohttp

ACCEPTED = "gzip, deflate"
"""The encodings that are asked for, and understood."""

_GZIP_OR_ZLIB = 47  # zlib's own number for: whichever of the two the header says
_PACKING = 1 << 16  # bytes that packing may add; a pack that is longer than that holds next to nothing
_BARE = -zlib.MAX_WBITS  # "deflate" without the header that it should have


class BodyTooLarge(aiohttp.ClientPayloadError):
    """The response's body is larger than the client's limit; the rest was not read."""


class BodyCut(aiohttp.ClientPayloadError):
    """The response's compressed body ends before its end, or is not what its encoding says."""


class BoundedBody:
    """What has come in of one body.

    Args:
        limit: bytes, decompressed.
        encoding: the response's ``Content-Encoding``, if it has one.
    """

    def __init__(self, limit: int, *, encoding: str | None) -> None:
        self._room = limit
        self._chunks: list[bytes] = []
        self._encoding = (encoding or "identity").strip().lower()
        self._unpack: zlib._Decompress | None = None
        self._packed_room = limit + _PACKING

    @property
    def content(self) -> bytes:
        """All that was taken so far."""
        return b"".join(self._chunks)

    def take(self, chunk: bytes) -> None:
        """Take what came in.

        Raises:
            BodyTooLarge: it goes beyond the limit; what fits was taken.
            BodyCut: it is not what the encoding says, or follows what was packed.
        """
        if self._encoding != "identity":
            chunk = self._unpacked(chunk)
        self._take(chunk)

    def _take(self, chunk: bytes) -> None:
        self._chunks.append(chunk[: self._room])
        self._room -= len(chunk)
        if self._room < 0:
            raise BodyTooLarge

    def end(self) -> None:
        """There is no more of it.

        Raises:
            BodyCut: there should be.
        """
        if self._unpack is not None and not self._unpack.eof:
            raise BodyCut

    def _unpacked(self, chunk: bytes) -> bytes:
        if self._unpack is None:
            self._unpack = zlib.decompressobj(self._wbits(chunk))
        if self._unpack.eof:  # zlib would keep whatever follows, and copy all of it each time
            raise BodyCut
        self._packed_room -= len(chunk)
        try:
            unpacked = self._unpack.decompress(chunk, self._room + 1)  # one more than fits tells it doesn't
        except zlib.error as error:
            raise BodyCut from error
        if self._unpack.unused_data or self._packed_room < 0:
            self._take(unpacked)
            raise BodyCut
        return unpacked

    def _wbits(self, chunk: bytes) -> int:
        if self._encoding not in ("gzip", "x-gzip", "deflate"):
            raise BodyCut("an encoding that was not asked for")
        bare = self._encoding == "deflate" and chunk[:1] != b"" and chunk[0] & 0x0F != 8
        return _BARE if bare else _GZIP_OR_ZLIB
