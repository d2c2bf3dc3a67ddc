"""Small operations: decode and encode an order, and import the package."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measuring import machine
from benchmarks.measuring.reports import AreaResult, Goal, Table
from benchmarks.measuring.samples import RunSize, interleave_blocking, median_of, ratio

if TYPE_CHECKING:
    import argparse
import json
import time
from collections.abc import Callable
from decimal import Decimal

from benchmarks.contenders.ours import response_to
from benchmarks.measuring.workload import new_orders, order_fields
from transfer_async import Order
from transfer_async._converters import converter

PYDANTIC, EXACT = "decode: pydantic", "decode: pydantic, every digit"
STRICT, ALL = "decode: transfer_async, strict", "decode: transfer_async, all of it"
GOALS = {
    STRICT: "decode the strict fields of an order, as a call does",
    ALL: "decode the whole order",
}

_NOTE = (
    "pydantic's `model_validate_json` parses JSON numbers as floats: 12345678901234567.89 loses its last "
    "digits. To keep every digit, the standard library parses the JSON first."
)


def measure_decode(size: RunSize) -> AreaResult:
    """Measure all cases in interleaved rounds."""
    left_out: list[str] = []
    samples = measure_cases(CASES, size.slow_rounds, left_out)
    goals = []
    for name, metric in GOALS.items():
        share, note = None, "not installed"
        if {name, PYDANTIC, EXACT} <= samples.keys():
            share = ratio(samples[name], samples[EXACT], float)
            note = f"{ratio(samples[name], samples[PYDANTIC], float):.2f} of pydantic with floats"
        goals.append(Goal(metric, "pydantic 2, keeping every digit", "<= 0.8", share, note))
    rows = [(name, f"{median_of(rounds, float) * 1e6:,.1f}") for name, rounds in samples.items()]
    title = "Decode and encode an order of 8.6 KB"
    tables = [Table(title, ("case", "µs"), rows, _NOTE)] if rows else []
    figures = {f"{name}, µs": median_of(rounds, float) * 1e6 for name, rounds in samples.items()}
    return AreaResult("decode", goals, tables, figures, left_out)


# --- running a case with pyperf -------------------------------------------------------------------

LOOPS = 1_000
VALUES = 3
TIMEOUT = 60.0
"""The timeout for one sample, in seconds."""


def measure_cases(cases: Iterable[str], rounds: int, left_out: list[str]) -> dict[str, list[float]]:
    """Return the median seconds of each case in each round. Unavailable cases are left out."""
    with tempfile.TemporaryDirectory(prefix="micro-") as directory:
        samplers = {}
        for case in cases:
            if missing := _missing(case):
                left_out.append(f"{case}: {missing} is not installed")
            else:
                samplers[case] = partial(_sample, case, Path(directory))
        return interleave_blocking(samplers, rounds=rounds) if samplers else {}


def _missing(case: str) -> str | None:
    """Return the name of a package that the case needs and that is not installed."""
    needed = ("pyperf", "pydantic") if "pydantic" in case else ("pyperf",)
    return next((name for name in needed if importlib.util.find_spec(name) is None), None)


def _sample(case: str, directory: Path) -> float:
    import pyperf  # type: ignore[import-untyped] # in the dependency group `bench`

    file = directory / "sample.json"
    file.unlink(missing_ok=True)
    core, _ = machine.pick_cores()
    command = [sys.executable, "-m", "benchmarks.programs.bench_micro", case, "--quiet", f"--output={file}"]
    command += [] if core is None else [f"--affinity={core}"]
    done = subprocess.run(  # noqa: S603 - our own module
        command, cwd=machine.ROOT, capture_output=True, encoding="utf-8", timeout=TIMEOUT, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{case}: {(done.stderr.strip().splitlines() or ['it ended'])[-1]}")
    return float(pyperf.Benchmark.load(str(file)).median())


def main() -> None:
    """Measure one case: the arguments are its name and pyperf's options."""
    import pyperf

    def add_case_argument(command: list[str], options: argparse.Namespace) -> None:
        command.append(options.case)

    arguments: dict[str, Any] = {"processes": 1, "values": VALUES, "warmups": 1, "loops": LOOPS}
    runner = pyperf.Runner(
        **arguments,
        program_args=("-m", "benchmarks.programs.bench_micro"),
        add_cmdline_args=add_case_argument,
    )
    runner.argparser.add_argument("case")
    case = runner.parse_args().case
    runner.bench_func(case, CASES[case]())


# --- the cases ------------------------------------------------------------------------------------

Case = Callable[[], object]

ORDER = new_orders(1)[0]
ANSWER = response_to(ORDER)
FIELDS: dict[str, Any] = next(order_fields())


def decode_strict() -> object:
    """Decode the fields that are validated strictly. The other fields are decoded on access."""
    return converter.read_answer(ANSWER)


def decode_all() -> object:
    """Decode everything: accessing one of the other fields decodes them all."""
    return Order.from_json(ANSWER).user


def decode_json() -> object:
    """Decode into dicts and floats with the standard library, as a reference."""
    return json.loads(ANSWER)


def decode_pydantic() -> Case:
    """Decode into the same models with pydantic 2, which parses numbers as floats."""
    from benchmarks.contenders.pydantic_models import PydanticOrder

    return lambda: PydanticOrder.model_validate_json(ANSWER)


def decode_pydantic_exact() -> Case:
    """Decode with pydantic 2 and keep every digit."""
    from benchmarks.contenders.pydantic_models import PydanticOrder

    return lambda: PydanticOrder.model_validate(json.loads(ANSWER, parse_float=Decimal))


def encode_ours() -> object:
    """Encode a validated order."""
    return ORDER.to_json()


def encode_json() -> object:
    """Encode a dict of strings with the standard library, as a reference."""
    return json.dumps(FIELDS, default=str).encode()


def encode_pydantic() -> Case:
    """Encode a validated model with pydantic 2."""
    from benchmarks.contenders.pydantic_models import PydanticNewOrder

    order = PydanticNewOrder.model_validate(FIELDS)
    return lambda: order.model_dump_json(by_alias=True)


CASES: dict[str, Callable[[], Case]] = {
    STRICT: lambda: decode_strict,
    ALL: lambda: decode_all,
    PYDANTIC: decode_pydantic,
    EXACT: decode_pydantic_exact,
    "decode: json.loads": lambda: decode_json,
    "encode: transfer_async": lambda: encode_ours,
    "encode: pydantic": encode_pydantic,
    "encode: json.dumps": lambda: encode_json,
}
"""For each case, a function that prepares it and returns the function to measure."""


# --- imports --------------------------------------------------------------------------------------

IMPORTS = ("pass", "import aiohttp", "import aiohttp, transfer_async")
"""The code that a new process runs."""

STARTS_PER_ROUND = 8
"""How often each round of the suite starts each process: a start is short, and the machine's speed drifts."""

EXTRAS = ("asyncpg", "rapidfuzz", "rich", "typer", "faststream", "opentelemetry", "pydantic", "pytest")
"""Packages that must not be imported with `transfer_async`."""

_LIST_MODULES = "import json, sys, transfer_async; print(json.dumps([*sys.modules]))"


def extras_imported() -> list[str]:
    """Return the extras that ``import transfer_async`` imports."""
    done = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", _LIST_MODULES], cwd=machine.ROOT, capture_output=True, timeout=60, check=True
    )
    modules = json.loads(done.stdout)
    return [name for name in EXTRAS if name in modules]


def _seconds(line: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", line], cwd=machine.ROOT, timeout=60, check=True)  # noqa: S603 - ours
    return time.perf_counter() - began


def measure_imports(size: RunSize) -> AreaResult:
    """Measure whole processes in interleaved rounds. The differences are the imports."""
    extras = extras_imported()
    none = Goal("extras imported with `transfer_async`", "none", "<= 0", len(extras), ", ".join(extras))
    starts = {line: partial(_seconds, line) for line in IMPORTS}
    samples = interleave_blocking(starts, rounds=STARTS_PER_ROUND * size.rounds)
    rounds = list(zip(*samples.values(), strict=True))
    own = 1e3 * median_of(rounds, lambda round_: round_[1] - round_[0])
    ours = 1e3 * median_of(rounds, lambda round_: round_[2] - round_[1])
    share = median_of(rounds, lambda round_: (round_[2] - round_[1]) / (round_[1] - round_[0]))
    metric, baseline = "import of `transfer_async` on top of aiohttp", "aiohttp's own import"
    rows = [("aiohttp", f"{own:.1f}"), ("transfer_async, on top of aiohttp", f"{ours:.1f}")]
    return AreaResult(
        "import",
        [Goal(metric, baseline, "<= 0.4", share), none],
        [Table("Imports", ("what", "ms"), rows)],
        {"import: aiohttp, ms": own, "import: transfer_async, ms": ours},
    )


if __name__ == "__main__":
    main()
