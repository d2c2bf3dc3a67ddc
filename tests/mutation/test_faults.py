"""The list of faults: every fault fits its file, and the tests that it names exist."""

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.mutation.checkout import DIES, HANGS, HERE
from tests.mutation.faults import (
    FAULTS,
    INTERLEAVINGS,
    LIST,
    PROMISE,
    SIMULATION,
    Fault,
    LinesNotFound,
    read_faults,
)
from tests.support.trials import ONLY_IN_TRIALS

ODD = """
diff transfer_async/journal/state_machine.py

odd: nothing
@@ tests/journal
@@ tests.simulation --seed 7
 if now:
-    return now < then
+    return now <= then
@@
-pass
"""


def planted() -> Iterator[tuple[Fault, str]]:
    """Yield each fault with its changed file."""
    sources = {path: (HERE / path).read_text(encoding="utf-8") for path in {fault.path for fault in FAULTS}}
    return ((fault, fault.plant(sources[fault.path])) for fault in FAULTS)


def test_every_fault_fits_its_file_once():
    assert all(source for _, source in planted())


@ONLY_IN_TRIALS
def test_every_mutation_fault_leaves_code_that_compiles():
    for fault, source in planted():
        compile(source, fault.path, "exec")  # faster than ast.parse


def test_every_block_of_the_list_is_a_fault_of_a_unique_name():
    counts = Counter(fault.name for fault in FAULTS)

    assert [name for name, count in counts.items() if count > 1] == []
    worlds = sum(len(fault.worlds) for fault in FAULTS)
    assert len(FAULTS) + worlds == LIST.read_text(encoding="utf-8").count("\n@@ ")


def test_the_other_tests_with_planted_faults_exist():
    others = {world for fault in FAULTS for world in fault.worlds if world != INTERLEAVINGS}

    assert [world for world in others if not world.removeprefix(SIMULATION).isdigit()] == []


def test_the_named_tests_exist():
    tests = {*(fault.caught_by for fault in FAULTS), *PROMISE} - {HANGS, DIES}
    paths = sorted({test.partition("::")[0] for test in tests})

    assert [path for path in paths if not (HERE / path).exists()] == []
    # The second directory contains the contract tests.
    directories = (HERE / "tests", HERE / "transfer_async/testing")
    sources = "".join(
        path.read_text(encoding="utf-8") for directory in directories for path in directory.rglob("*.py")
    )
    defined = set(re.findall(r"def (test_\w+)\(", sources))
    names = {test.partition("[")[0].rpartition("::")[2] for test in tests if "::" in test}
    assert sorted(names - defined) == []


def test_a_fault_that_does_not_match_the_source_is_reported():
    (fault,) = read_faults(ODD)

    assert fault == Fault(
        "transfer_async/journal/state_machine.py",
        "odd",
        "nothing",
        "tests/journal",
        ("tests.simulation --seed 7",),
        (("if now:\n    return now < then\n", "if now:\n    return now <= then\n"), ("pass\n", "")),
    )
    assert fault.seed == 7
    (before, after), _ = fault.hunks
    assert fault.plant(f"{before}pass\n") == after
    for source, count in (("pass\n", 0), (before * 2, 2), (f"    {before}", 0), (before, 0)):
        with pytest.raises(LinesNotFound, match=f"odd: found {count} times"):
            fault.plant(source)
