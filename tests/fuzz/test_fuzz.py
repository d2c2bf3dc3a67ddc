"""A few seconds of hostile responses. `python -m tests.fuzz --seconds 600` runs longer."""

import importlib.util
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import seeds, targets
from tests.fuzz.mutation import mutate

ROOT = Path(__file__).parents[2]
SEEDS = seeds.inputs()


def test_every_seed_keeps_the_promises():
    for data in SEEDS:
        targets.check(data)


def test_seeds_reach_what_they_are_meant_for():
    readable = [body for body in seeds.replies() if body.startswith(b'{"id":"tx-')]

    assert len(readable) >= 3
    assert len({data[0] for data in SEEDS}) == len(targets.TARGETS)


@given(st.sampled_from(SEEDS), st.lists(st.integers(0, 2**32), min_size=1, max_size=5))
def test_a_reply_that_was_tampered_with_keeps_the_promises(data: bytes, changes: list[int]):
    for seed in changes:
        data = mutate(data, random.Random(seed), largest=targets.LARGEST)

    targets.check(data)


@given(st.integers(0, len(targets.TARGETS) - 1), st.binary(max_size=200))
def test_a_reply_of_any_bytes_keeps_the_promises(target: int, raw: bytes):
    targets.check(bytes([target]) + raw)


@pytest.mark.trial(ci=5, long=600)
@pytest.mark.timeout(900)
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed")
def test_a_coverage_guided_search_finds_no_broken_promise(tmp_path: Path, size: int):
    command = [sys.executable, "-m", "tests.fuzz", "--seconds", str(size), "--found", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, encoding="utf-8")

    assert ended.returncode == 0, ended.stderr[-6000:]
    runs = re.search(r"Done (\d+) runs", ended.stderr)
    assert runs is not None
    assert int(runs[1]) > 0  # how many inputs run in a second depends on the machine


def test_an_input_that_takes_too_long_is_a_broken_promise(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(targets, "SECONDS", -1.0)

    with pytest.raises(targets.Finding, match="bytes took"):
        targets.check(SEEDS[0])
