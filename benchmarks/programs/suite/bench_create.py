"""The CPU cost of one order, against the other clients."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from benchmarks.contenders import BARE, HANDWRITTEN, HTTPX, OURS, STRIPE, TREASURY, Terms
from benchmarks.contenders.host import processes
from benchmarks.measuring import machine
from benchmarks.measuring.reports import Findings, Goal, Table
from benchmarks.measuring.samples import Effort, Sample, median_of, ratio, taken_in_turn
from benchmarks.measuring.services import run_service

AT_ONCE = 32
WHAT = f"CPU of `create_order`, {AT_ONCE} at once"
GOALS = {
    BARE: (WHAT, "bare aiohttp: post bytes, read bytes", "<= 1.6"),
    HANDWRITTEN: ("the same", "aiohttp + tenacity by hand, dicts", "<= 0.95"),
    TREASURY: ("the same", "Modern Treasury's async SDK", "<= 0.15"),
    STRIPE: ("the same", "Stripe's async SDK", "<= 0.08"),
}
ON_UVLOOP = ("the same, both on uvloop", "bare aiohttp on uvloop", "<= 1.7")


NEAR = (BARE, HANDWRITTEN)
"""Contenders whose cost is so close to ours that one process is not enough to compare."""

FAR = (HTTPX, TREASURY, STRIPE)


def run(effort: Effort) -> Findings:
    """Create orders with all contenders in interleaved rounds, each in its own process."""
    left_out: list[str] = []
    core, other = machine.cores()
    with run_service("raw", core=other) as remote:
        terms = Terms(base_url=remote.base_url, token=remote.token)
        far = _rounds((*FAR, OURS), terms, effort, left_out, core=core)
        near = _near(NEAR, terms, effort, left_out, core=core)
        on_uvloop = _near((BARE,), attrs.evolve(terms, uvloop=True), effort, left_out, core=core)
    shares = {name: ratio(group[OURS], group[name], _cpu) for group in (far, near) for name in group}
    goals = [
        Goal(*GOALS[name], measured=shares.get(name), note="" if name in shares else "not installed")
        for name in GOALS
    ]
    share = ratio(on_uvloop[OURS], on_uvloop[BARE], _cpu) if on_uvloop else None
    goals.append(Goal(*ON_UVLOOP, measured=share, note="" if on_uvloop else "not installed"))
    found = near | {name: far[name] for name in FAR if name in far}
    named = found | {f"{name}, on uvloop": rounds for name, rounds in on_uvloop.items()}
    figures = {f"create: {name}, µs of CPU": median_of(rounds, _cpu) * 1e6 for name, rounds in named.items()}
    return Findings("create", goals, [_table(found, shares)], figures, left_out)


def _near(
    names: Iterable[str], terms: Terms, effort: Effort, left_out: list[str], *, core: int | None
) -> dict[str, list[Sample]]:
    """Short rounds in new processes, since one process costs up to a tenth more than another by chance."""
    brief = attrs.evolve(effort, turn=effort.turn / 4)
    found: dict[str, list[Sample]] = {}
    for number in range(effort.starts):
        rounds = _rounds((*names, OURS), terms, brief, left_out if number == 0 else [], core=core)
        for name, samples in rounds.items():
            found.setdefault(name, []).extend(samples)
    return found


def _rounds(
    names: Iterable[str], terms: Terms, effort: Effort, left_out: list[str], *, core: int | None
) -> dict[str, list[Sample]]:
    with processes(names, terms, left_out, core=core) as contenders:
        turns = {
            name: lambda one=one: one.turn(at_once=AT_ONCE, seconds=effort.turn)
            for name, one in contenders.items()
        }
        if not turns:
            return {}
        taken_in_turn(turns, rounds=1)
        return taken_in_turn(turns, rounds=effort.rounds)


def _cpu(sample: Sample) -> float:
    return sample.cpu_cost


def _table(found: dict[str, list[Sample]], shares: dict[str, float]) -> Table:
    rows = [
        (
            name,
            f"{median_of(rounds, _cpu) * 1e6:,.0f}",
            f"{min(map(_cpu, rounds)) * 1e6:,.0f}",
            f"{median_of(rounds, lambda one: one.rate):,.0f}",
            f"{shares[name]:.2f}",
        )
        for name, rounds in found.items()
    ]
    head = ("contender", "CPU, µs an order", "least", "orders/s", f"{OURS} / it")
    note = (
        f"Medians of the rounds; {HTTPX} retries nothing. The two SDKs read the same 8.6 KB order, "
        "which is not of their own models' shape."
    )
    return Table(f"One order, {AT_ONCE} at once, by contender", head, rows, note)
