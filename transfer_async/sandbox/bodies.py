"""Answers as bytes, for the faults that write their own."""

import zlib
from collections.abc import Iterable, Iterator
from http import HTTPStatus

from transfer_async.sandbox.service import Reply

_BLOCK = b"x" * (1 << 16)


def whole_answer(reply: Reply, *, keep_alive: bool = False) -> bytes:
    """Write a whole HTTP/1.1 answer, head and body."""
    lines = [
        f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(reply.body)}",
        f"Connection: {'keep-alive' if keep_alive else 'close'}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + reply.body


def padded(document: bytes, size: int) -> Iterator[bytes]:
    """Stretch a JSON object to about `size` bytes with one more field, made piece by piece."""
    yield document[:-1] + b',"padding":"'
    for _ in range(size // len(_BLOCK)):
        yield _BLOCK
    yield b'"}'


def compressed(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Compress (gzip) piece by piece; while the compressor keeps what it was given, a piece is empty."""
    # 16 more than the window's size asks zlib for gzip's own head and tail.
    machine = zlib.compressobj(level=1, wbits=zlib.MAX_WBITS | 16)
    for part in parts:
        yield machine.compress(part)
    yield machine.flush()
