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


@each("encoding", ["gzip", "deflate", None])
def test_one_byte_over_the_limit_is_too_large_and_the_rest_is_kept(encoding: str | None):
    body = BoundedBody(len(TEXT) - 1, encoding=encoding)
    with pytest.raises(BodyTooLarge):
        body.take(PACKERS[encoding](TEXT))

    assert body.content == TEXT[:-1]


@each("encoding", ["gzip", "deflate"])
def test_a_compressed_body_that_was_cut_is_not_complete(encoding: str):
    body = BoundedBody(10_000, encoding=encoding)
    body.take(PACKERS[encoding](TEXT)[:-9])

    with pytest.raises(BodyCut):
        body.end()


ONLY_OF_AIOHTTP = {*ClientRequest.DEFAULT_HEADERS["Accept-Encoding"].split(", ")} - {*ACCEPTED.split(", ")}


@each("encoding", ["br", "zstd", "compress", "gzip, gzip", "x" * 1000, *sorted(ONLY_OF_AIOHTTP)])
def test_an_encoding_that_was_not_requested_is_refused(encoding: str):
    body = BoundedBody(10_000, encoding=encoding)

    with pytest.raises(BodyCut, match="not requested"):
        body.take(b"anything")


def test_data_that_is_not_gzip_is_refused():
    with pytest.raises(BodyCut):
        BoundedBody(10_000, encoding="gzip").take(b"{}" * 10)


@each("encoding", ["gzip", "deflate"])
def test_data_after_a_compressed_body_makes_it_incomplete_and_is_not_passed_to_zlib(encoding: str):
    one, two = map(PACKERS[encoding], (b"one", b"two"))
    for chunks in ([one + two], [one, bytes(1000)]):
        body = BoundedBody(10_000, encoding=encoding)
        with pytest.raises(BodyCut):
            for chunk in chunks:
                body.take(chunk)

        assert body.content == b"one"
    assert body._unpack.unused_data == b""  # zlib would copy it again with every chunk


def test_an_endless_compressed_body_without_content_is_refused():
    packer = zlib.compressobj(wbits=31)
    nothing = packer.compress(b"") + packer.flush(zlib.Z_FULL_FLUSH)
    body = BoundedBody(1000, encoding="gzip")
    body.take(nothing)
    with pytest.raises(BodyCut):
        for _ in range(100):
            body.take(packer.flush(zlib.Z_FULL_FLUSH) or b"\0\0\0\xff\xff" * 1000)
