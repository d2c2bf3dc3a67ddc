"""The lines of a text file, numbered as an editor shows them, none of them longer than memory is for."""

from __future__ import annotations

import io
from collections.abc import Iterator

LONGEST = 1 << 20
"""How many bytes a line may have: an order has less than a thousand."""

_BOM = b"\xef\xbb\xbf"


class BadLine(Exception):
    """A line cannot be read as text; those after it can."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line
        self.why = why


class TextLines:
    """An iterator that goes on after a `BadLine`.

    Args:
        file: read from its beginning.

    Attributes:
        number: of the last line that was read.
    """

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self.number = 0

    def __iter__(self) -> TextLines:
        return self

    def __next__(self) -> str:
        """The next line with its end, as it is in the file.

        Raises:
            BadLine: it is no text, or too long.
        """
        raw = self._file.readline(LONGEST + 1)
        if not raw:
            raise StopIteration
        self.number += 1
        if len(raw) > LONGEST:
            self._skip_rest(raw)
            raise BadLine(self.number, "is longer than a mebibyte")
        if self.number == 1:
            raw = raw.removeprefix(_BOM)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise BadLine(self.number, "is not UTF-8") from None

    def _skip_rest(self, raw: bytes) -> None:
        while raw and not raw.endswith(b"\n"):
            raw = self._file.readline(LONGEST)


def each_line(lines: TextLines) -> Iterator[str | BadLine]:
    """Each line that has something in it, and instead of one that cannot be read, why."""
    while True:
        try:
            text = next(lines, None)
        except BadLine as bad:
            yield bad
            continue
        if text is None:
            return
        if text.strip():
            yield text
