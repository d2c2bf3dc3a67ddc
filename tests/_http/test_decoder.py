import gzip
import zlib

import pytest
from aiohttp import ClientRequest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cases import each
from transfer_async._http.transport import ACCEPTED, BodyCut, BodyTooLarge, BoundedBody

TEXT = b'{"id": "tx-1"}' * 50


PACKERS = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "GZIP ": gzip.compress,
    "deflate": zlib.compress,
    "identity": bytes,
    None: bytes,
}


@pytest.mark.parametrize("encoding", PACKERS)
@given(cuts=st.lists(st.integers(0, 700), max_size=5))
def test_a_body_is_the_same_for_any_split_into_chunks(encoding: str | None, cuts: list[int]):
    packed = PACKERS[encoding](TEXT)
    body = BoundedBody(len(TEXT), encoding=encoding)
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(packed)], strict=True):
        if packed[start:end]:
            body.take(packed[start:end])
    body.end()

    assert body.content == TEXT


@pytest.mark.parametrize("encoding", ["gzip", "deflate", None])
def test_one_byte_over_the_limit_is_too_large_and_the_rest_is_kept(encoding: str | None):
    body = BoundedBody(len(TEXT) - 1, encoding=encoding)
    with pytest.raises(BodyTooLarge):
        body.take(PACKERS[encoding](TEXT))

    assert body.content == TEXT[:-1]


def test_a_compression_bomb_is_unpacked_only_up_to_the_limit():
    bomb = gzip.compress(bytes(50_000_000))
    body = BoundedBody(1000, encoding="gzip")
    with pytest.raises(BodyTooLarge):
        body.take(bomb)

    assert body.content == bytes(1000)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_compressed_body_that_was_cut_is_not_complete(encoding: str):
    body = BoundedBody(10_000, encoding=encoding)
    body.take(PACKERS[encoding](TEXT)[:-9])

    with pytest.raises(BodyCut):
        body.end()


@each("encoding", ["br", "zstd", "gzip, gzip", "x" * 1000])
def test_an_encoding_that_was_not_requested_is_refused(encoding: str):
    body = BoundedBody(10_000, encoding=encoding)

    with pytest.raises(BodyCut, match="not requested"):
        body.take(b"anything")


def test_data_that_is_not_gzip_is_refused():
    body = BoundedBody(10_000, encoding="gzip")

    with pytest.raises(BodyCut):
        body.take(b"{}" * 10)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_data_after_a_compressed_body_makes_it_incomplete(encoding: str):
    pack = PACKERS[encoding]
    body = BoundedBody(10_000, encoding=encoding)
    with pytest.raises(BodyCut):
        body.take(pack(b"one") + pack(b"two"))

    assert body.content == b"one"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_data_in_a_chunk_after_the_end_is_not_passed_to_zlib(encoding: str):
    body = BoundedBody(10_000, encoding=encoding)
    body.take(PACKERS[encoding](b"one"))
    with pytest.raises(BodyCut):
        body.take(bytes(1000))

    assert body._unpack.unused_data == b""


def test_an_endless_compressed_body_without_content_is_refused():
    packer = zlib.compressobj(wbits=31)
    nothing = packer.compress(b"") + packer.flush(zlib.Z_FULL_FLUSH)
    body = BoundedBody(1000, encoding="gzip")
    body.take(nothing)
    with pytest.raises(BodyCut):
        for _ in range(100):
            body.take(packer.flush(zlib.Z_FULL_FLUSH) or b"\0\0\0\xff\xff" * 1000)


def test_encodings_that_only_aiohttp_accepts_are_refused():
    ours = {name.strip() for name in ACCEPTED.split(",")}
    theirs = ClientRequest.DEFAULT_HEADERS["Accept-Encoding"] + ", br, zstd, compress"
    for encoding in {name.strip() for name in theirs.split(",")} - ours:
        with pytest.raises(BodyCut, match="not requested"):
            BoundedBody(10_000, encoding=encoding).take(b"anything")
