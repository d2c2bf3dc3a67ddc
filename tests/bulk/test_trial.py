"""A command that is killed; any number of times by `python -m tests.bulk`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.trial(ci=2_000, long=100_000), pytest.mark.timeout(3600)]


@pytest.mark.parametrize("faults", [(), ("close-after-processing=0.02", "status=0.02:status=429")])
def test_a_command_that_is_killed_again_and_again_loses_no_order_and_creates_none_twice(faults, size: int):
    lines, kills = size, 5 if size < 100_000 else 20
    words = ["--lines", str(lines), "--kills", str(kills), *(f"--fault={fault}" for fault in faults)]

    ended = subprocess.run(
        [sys.executable, "-m", "tests.bulk", *words], cwd=ROOT, check=False, capture_output=True, text=True
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(rf"^ *{kills} kills$", ended.stdout, re.MULTILINE)
    assert re.search(r"^ *0 promises broken$", ended.stdout, re.MULTILINE)
    assert len(re.findall(r"run \d+: killed", ended.stdout)) == kills
