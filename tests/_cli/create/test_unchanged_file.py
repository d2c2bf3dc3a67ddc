"""If a file changes between two readings, this is noticed before a changed byte is returned."""

import io
import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from transfer_async._cli import create_input
from transfer_async._cli.create_input import Changed, UnchangedFile


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(create_input, "BLOCK", 8)


def read_once(data: bytes) -> tuple[UnchangedFile, io.BytesIO]:
    file = io.BytesIO(data)
    made = UnchangedFile(file)
    assert made.reading().read() == data
    return made, file


@given(st.binary(max_size=100))
def test_an_unchanged_file_reads_the_same_each_time(data):
    made, _ = read_once(data)

    assert made.reading().read() == data
    assert made.reading().read() == data


@example(b"x" * 64, b"x" * 64 + b"y" * 640)
@given(st.binary(max_size=60), st.binary(max_size=60))
def test_a_change_is_noticed_before_a_byte_that_differs_is_returned(before, after):
    made, file = read_once(before)
    file.seek(0)
    file.truncate()
    file.write(after)

    got = b""
    reading = made.reading()
    if before == after:
        assert reading.read() == before
        return
    with pytest.raises(Changed):
        while piece := reading.read(8):
            got += piece
        raise AssertionError("it ended")

    assert before.startswith(got)


def test_the_digests_of_a_big_file_are_small(tmp_path, monkeypatch):
    monkeypatch.setattr(create_input, "BLOCK", 1 << 20)
    path = tmp_path / "orders"
    with path.open("wb") as file:
        file.seek((16 << 20) - 1)
        file.write(b"\n")
    with path.open("rb", buffering=0) as file:
        made = UnchangedFile(file)
        while made.reading().read(1 << 20) and os.lseek(file.fileno(), 0, os.SEEK_CUR) < 1 << 20:
            pass
        reading = made.reading()
        while reading.read(1 << 20):
            pass

    assert len(made._digests) == 16 * 16
