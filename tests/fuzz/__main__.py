"""`python -m tests.fuzz --seconds 600`: the exit code is 0 if every promise was kept."""

import argparse
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.seeds import inputs
from tests.fuzz.targets import LARGEST, check

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Run atheris with the seeds until the time is up or a promise is broken, or replay one input."""
    options = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    options.add_argument("--seconds", type=int, default=60, help="how long (60)")
    options.add_argument("--found", type=Path, help="where to keep an input that breaks a promise")
    options.add_argument("--replay", type=Path, help="try the input in this file, and nothing else")
    chosen = options.parse_args()
    if chosen.replay:
        check(chosen.replay.read_bytes())
        return 0
    found = chosen.found or tempfile.mkdtemp(prefix="fuzz-")
    with tempfile.TemporaryDirectory() as corpus:
        for seed in inputs():
            (Path(corpus) / hashlib.sha256(seed).hexdigest()).write_bytes(seed)
        command = [
            *[sys.executable, "-m", "tests.fuzz.guided", corpus, f"-max_total_time={chosen.seconds}"],
            *[f"-max_len={LARGEST}", "-timeout=20", "-rss_limit_mb=2048", f"-artifact_prefix={found}/"],
        ]
        return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
