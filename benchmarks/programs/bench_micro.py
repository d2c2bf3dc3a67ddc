"""Reading an order from bytes, and writing one."""

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
NAMES = (
    *(STRICT, ALL, PYDANTIC, EXACT, "decode: json.loads"),
    *("encode: transfer_async", "encode: pydantic", "encode: json.dumps"),
)
GOALS = {
    STRICT: "reading the order, the strict part, as a call does",
    ALL: "reading the order, all of it",
}

_NOTE = (
    "pydantic's `model_validate_json` reads JSON numbers through float, so that 12345678901234567.89 "
    "loses its last digits; with every digit kept, the standard library decodes for it."
)


def measure_decode(size: RunSize) -> AreaResult:
    """Measure all cases in interleaved rounds."""
    left_out: list[str] = []
    samples = measure_cases(NAMES, size.slow_rounds, left_out)
    goals = []
    for name, what in GOALS.items():
        share, note = None, "not installed"
        if {name, PYDANTIC, EXACT} <= samples.keys():
            share = ratio(samples[name], samples[EXACT], float)
            note = f"{ratio(samples[name], samples[PYDANTIC], float):.2f} of pydantic that loses digits"
        goals.append(Goal(what, "pydantic 2 that keeps every digit", "<= 0.8", share, note))
    rows = [(name, f"{median_of(rounds, float) * 1e6:,.1f}") for name, rounds in samples.items()]
    title = "Bytes and models, an order of 8.6 KB"
    tables = [Table(title, ("case", "µs"), rows, _NOTE)] if rows else []
    figures = {f"{name}, µs": median_of(rounds, float) * 1e6 for name, rounds in samples.items()}
    return AreaResult("decode", goals, tables, figures, left_out)


# --- running a case with pyperf -------------------------------------------------------------------

LOOPS = 1_000
VALUES = 3
TIMEOUT = 60.0
"""Seconds, at most, for one turn."""


def measure_cases(cases: Iterable[str], rounds: int, left_out: list[str]) -> dict[str, list[float]]:
    """The seconds of each case, a median for each round; who cannot be had is left out."""
    with tempfile.TemporaryDirectory(prefix="micro-") as directory:
        samplers = {}
        for case in cases:
            if missing := _missing(case):
                left_out.append(f"{case}: {missing} is not installed")
            else:
                samplers[case] = partial(_sample, case, Path(directory))
        return interleave_blocking(samplers, rounds=rounds) if samplers else {}


def _missing(case: str) -> str | None:
    """The module of the group `bench` that a case needs and that is not installed."""
    needed = ("pyperf", "pydantic") if "pydantic" in case else ("pyperf",)
    return next((name for name in needed if importlib.util.find_spec(name) is None), None)


def _sample(case: str, directory: Path) -> float:
    import pyperf  # type: ignore[import-untyped] # in the group `bench`

    file = directory / "turn.json"
    file.unlink(missing_ok=True)
    core, _ = machine.pick_cores()
    command = [sys.executable, "-m", "benchmarks.programs.bench_micro", case, "--quiet", f"--output={file}"]
    command += [] if core is None else [f"--affinity={core}"]
    done = subprocess.run(  # noqa: S603 - a module of ours
        command, cwd=machine.ROOT, capture_output=True, encoding="utf-8", timeout=TIMEOUT, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{case}: {(done.stderr.strip().splitlines() or ['it ended'])[-1]}")
    return float(pyperf.Benchmark.load(str(file)).median())


def main() -> None:
    """Measure one case; the arguments are pyperf's, after the case's name."""
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
    """What a call reads: all that money hangs on, and the rest left to be read when looked at."""
    return converter.read_answer(ANSWER)


def decode_all() -> object:
    """All of it, at once: one look at a loose field reads the rest."""
    return Order.from_json(ANSWER).user


def decode_json() -> object:
    """The standard library, into dicts, numbers through float: for scale only."""
    return json.loads(ANSWER)


def decode_pydantic() -> Case:
    """pydantic 2, the same shape."""
    from benchmarks.contenders.pydantic_models import PydanticOrder

    return lambda: PydanticOrder.model_validate_json(ANSWER)


def decode_pydantic_exact() -> Case:
    """pydantic 2 as it has to be used where digits count: by itself it reads numbers through float."""
    from benchmarks.contenders.pydantic_models import PydanticOrder

    return lambda: PydanticOrder.model_validate(json.loads(ANSWER, parse_float=Decimal))


def encode_ours() -> object:
    """A checked order, as bytes."""
    return ORDER.to_json()


def encode_json() -> object:
    """The standard library, from a dict of strings: for scale only."""
    return json.dumps(FIELDS, default=str).encode()


def encode_pydantic() -> Case:
    """pydantic 2, from a validated model."""
    from benchmarks.contenders.pydantic_models import PydanticNewOrder

    order = PydanticNewOrder.model_validate(FIELDS)
    return lambda: order.model_dump_json(by_alias=True)


CASES: dict[str, Callable[[], Case]] = {
    "decode: transfer_async, strict": lambda: decode_strict,
    "decode: transfer_async, all of it": lambda: decode_all,
    "decode: pydantic": decode_pydantic,
    "decode: pydantic, every digit": decode_pydantic_exact,
    "decode: json.loads": lambda: decode_json,
    "encode: transfer_async": lambda: encode_ours,
    "encode: pydantic": encode_pydantic,
    "encode: json.dumps": lambda: encode_json,
}
"""How each case is made ready."""


# --- imports --------------------------------------------------------------------------------------

IMPORTS = ("pass", "import aiohttp", "import aiohttp, transfer_async")
"""What a process of its own does, and nothing else."""

STARTS_PER_ROUND = 8
"""Of each, for one round elsewhere: a start is short, and the machine's speed drifts from one to the next."""

EXTRAS = ("asyncpg", "rapidfuzz", "rich", "typer", "faststream", "opentelemetry", "pydantic", "pytest")
"""What a caller that wants none of it must not pay for."""

_LIST_MODULES = "import json, sys, transfer_async; print(json.dumps([*sys.modules]))"


def extras_imported() -> list[str]:
    """The extras that are imported with the package, wanted or not."""
    done = subprocess.run(  # noqa: S603 - a line of ours
        [sys.executable, "-c", _LIST_MODULES], cwd=machine.ROOT, capture_output=True, timeout=60, check=True
    )
    modules = json.loads(done.stdout)
    return [name for name in EXTRAS if name in modules]


def _seconds(line: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", line], cwd=machine.ROOT, timeout=60, check=True)  # noqa: S603 - ours
    return time.perf_counter() - began


def measure_imports(size: RunSize) -> AreaResult:
    """Measure whole processes in turn; their differences are the imports."""
    extras = extras_imported()
    none = Goal("extras imported with `transfer_async`", "none", "<= 0", len(extras), ", ".join(extras))
    starts = {line: partial(_seconds, line) for line in IMPORTS}
    samples = interleave_blocking(starts, rounds=STARTS_PER_ROUND * size.rounds)
    rounds = list(zip(*samples.values(), strict=True))
    own = 1e3 * median_of(rounds, lambda round_: round_[1] - round_[0])
    ours = 1e3 * median_of(rounds, lambda round_: round_[2] - round_[1])
    share = median_of(rounds, lambda round_: (round_[2] - round_[1]) / (round_[1] - round_[0]))
    what, against = "import of `transfer_async` on top of aiohttp", "aiohttp's own import"
    rows = [("aiohttp", f"{own:.1f}"), ("transfer_async, on top of it", f"{ours:.1f}")]
    return AreaResult(
        "import",
        [Goal(what, against, "<= 0.4", share), none],
        [Table("Imports", ("what", "ms"), rows)],
        {"import: aiohttp, ms": own, "import: transfer_async, ms": ours},
    )


if __name__ == "__main__":
    main()
