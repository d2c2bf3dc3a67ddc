"""`python -m tests.mutation`: the exit code is 0 if every fault was caught, else 1."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from tests.mutation.checkout import Checkout, Found, ask
from tests.mutation.faults import FAULTS, Fault, record


@contextmanager
def checkouts(count: int) -> Iterator[SimpleQueue[Checkout]]:
    """Yield a queue with ``count`` copies of the checkout."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as directory:
        free: SimpleQueue[Checkout] = SimpleQueue()
        for number in range(count):
            free.put(Checkout(Path(directory) / str(number)))
        yield free


def ask_all(faults: Sequence[Fault], at_once: int) -> Iterator[Found]:
    """Yield the result of each fault as soon as it is known."""
    last = {fault.caught_by for fault in faults if "::" in fault.caught_by}
    with checkouts(at_once) as free, ThreadPoolExecutor(at_once) as threads:
        sound = last if len(last) > 1 and _all_pass(free, last) else frozenset[str]()

        def ask_one(fault: Fault) -> Found:
            checkout = free.get()
            try:
                return ask(fault, checkout, sound=sound)
            finally:
                free.put(checkout)

        for done in as_completed([threads.submit(ask_one, fault) for fault in faults]):
            yield done.result()


def _all_pass(free: SimpleQueue[Checkout], tests: Iterable[str]) -> bool:
    """Return whether the named tests pass without a fault. If so, this need not be checked for each fault."""
    checkout = free.get()
    free.put(checkout)
    return checkout.passes(sorted(tests))


def logged(path: Path | None) -> dict[str, str]:
    """Return the results of an earlier run."""
    if path is None or not path.exists():
        return {}
    return dict(line.split(" ", 1) for line in path.read_text(encoding="utf-8").splitlines())


def say(found: Found) -> None:
    """Print one row of the table."""
    print(f"{found.name:46} {found.seconds:6.1f} s  {found.verdict}", flush=True)  # noqa: T201


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant the chosen faults, one at a time, and print the results."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--only", metavar="NAME", help="only faults with this in their name")
    parser.add_argument("--list", action="store_true", help="show the faults, and plant none")
    parser.add_argument("--log", type=Path, metavar="FILE", help="continue an earlier run from its log")
    parser.add_argument(
        "--record", action="store_true", help="write the test that caught each fault into the list"
    )
    parser.add_argument("--at-once", type=int, default=2, help="the number of parallel copies")
    options = parser.parse_args(arguments)
    chosen = [fault for fault in FAULTS if options.only is None or options.only in fault.name]
    if options.list:
        for fault in chosen:
            print(f"{fault.name}: {fault.loses}\n    {fault.path}; {fault.caught_by}")  # noqa: T201
        return 0
    results = logged(options.log)
    for found in ask_all([fault for fault in chosen if fault.name not in results], options.at_once):
        say(found)
        results[found.name] = found.verdict
        if options.log is not None:
            with options.log.open("a", encoding="utf-8") as log:
                log.write(f"{found.name} {results[found.name]}\n")
    caught = {name: by for name, by in results.items() if not by.startswith(("SURVIVED", "FAILS"))}
    if options.record:
        record(caught)
    survivors = [fault.name for fault in chosen if fault.name not in caught]
    print(f"{len(chosen)} faults, {len(survivors)} survived {' '.join(survivors)}")  # noqa: T201
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
