import zlib

from transfer_async.sandbox.exact_json import read
from transfer_async.sandbox.faults import compressed, padded


def test_padding_keeps_the_document_and_makes_one_block_at_a_time():
    parts = list(padded(b'{"id":"a"}', 200_000))

    assert read(b"".join(parts))["id"] == "a"
    assert sum(map(len, parts)) > 196_000
    assert max(map(len, parts)) == 1 << 16


def test_compressed_parts_are_one_gzip_stream():
    parts = [b"a" * 1000, b"b" * 1000]

    assert zlib.decompress(b"".join(compressed(parts)), 31) == b"".join(parts)
