"""Lines are numbered as in an editor, and an unreadable line does not affect the others."""

import io
import tracemalloc

import pytest

from tests.support.cases import each
from tests.support.order_files import lines_of
from transfer_async._cli import output as module
from transfer_async._cli.output import BadLine, TextLines


def read(data: bytes) -> list[tuple[int, str]]:
    """Return every line, or the error in it."""
    lines = lines_of(data)
    found = []
    while True:
        try:
            text = next(lines, None)
        except BadLine as bad:
            found.append((bad.line, f"! {bad.why}"))
            continue
        if text is None:
            return found
        found.append((lines.number, text))


@each(
    ("data", "found"),
    [
        (b"", []),
        (b"a", [(1, "a")]),
        (b"a\n", [(1, "a\n")]),
        (b"a\r\nb\r\n", [(1, "a\r\n"), (2, "b\r\n")]),
        (b"\n\na", [(1, "\n"), (2, "\n"), (3, "a")]),
        (b"\xef\xbb\xbfa\nb", [(1, "a\n"), (2, "b")]),
        ("naïve\n€\n".encode(), [(1, "naïve\n"), (2, "€\n")]),
        (b"a\n\xff\xfe\nb\n", [(1, "a\n"), (2, "! is not UTF-8"), (3, "b\n")]),
        ("é\n".encode("latin-1") + b"b", [(1, "! is not UTF-8"), (2, "b")]),
        ("k\n".encode("utf-16"), [(1, "! is not UTF-8"), (2, "\0")]),
    ],
)
def test_lines_have_their_numbers(data, found):
    assert read(data) == found


@each("length", [11, 12, 111, 1011])
def test_a_line_that_is_too_long_is_skipped_and_the_next_is_read(monkeypatch, length):
    monkeypatch.setattr(module, "LONGEST", 10)

    assert read(b"a" * length + b"\nb\n") == [(1, "! is longer than 1 MiB"), (2, "b\n")]
    assert read(b"a" * length) == [(1, "! is longer than 1 MiB")]


def test_an_endless_line_takes_little_memory():
    class Endless(io.RawIOBase):
        left = 32 << 20

        def readable(self):
            return True

        def readinto(self, buffer):
            size = min(len(buffer), self.left)
            buffer[:size] = b"x" * size
            self.left -= size
            return size

    tracemalloc.start()
    lines = TextLines(io.BufferedReader(Endless()))
    with pytest.raises(BadLine):
        next(lines)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert most < 8 << 20
    assert next(lines, None) is None
