"""The command `verify-hooks`: its report and its exit codes."""

import textwrap

import pytest

from tests.support.cases import each
from tests.support.commands import invoke
from tests.support.trials import ONLY_IN_TRIALS
from transfer_async.testing import hook_trials

RIGHT = """
    from transfer_async.testing import Holds

    holds = Holds()

    def balance():
        return -len(holds.standing)

    def make():
        return {"hooks": [holds.hook], "held": holds.held, "balance": balance}
"""
WRONG = """
    import sqlite3
    from transfer_async import FundsHold

    db = sqlite3.connect("ledger.db", isolation_level=None, timeout=30)
    db.execute("CREATE TABLE IF NOT EXISTS hold (id INTEGER PRIMARY KEY, intent TEXT)")
    known = set()  # a new worker does not have it

    def rows(intent_id):
        found = db.execute("SELECT id FROM hold WHERE intent = ?", [intent_id])
        return [f"hold-\\x1b[{row}" for (row,) in found]

    async def place(intent):
        print("placing")
        if intent.id not in known:
            known.add(intent.id)
            db.execute("INSERT INTO hold (intent) VALUES (?)", [intent.id])
        return rows(intent.id)[0]

    async def release(intent, reference):
        db.execute("DELETE FROM hold WHERE intent = ?", [intent.id])

    async def make():
        return {"hooks": [FundsHold(place, release)], "held": rows, "balance": lambda: 0, "close": db.close}

    def fail():
        raise OSError("no ledger")

    async def empty():
        return {}
"""


@pytest.fixture(autouse=True)
def _modules(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "right_bank_on_trial.py").write_text(textwrap.dedent(RIGHT), encoding="utf-8")
    (tmp_path / "wrong_bank_on_trial.py").write_text(textwrap.dedent(WRONG), encoding="utf-8")


def verified(factory, *options, code):
    result = invoke("verify-hooks", factory, "--late", "0", *options)
    assert result.exit_code == code, result.output
    return result.output


def test_correct_hooks_keep_all_rules(monkeypatch):
    async def held_in_another_process(*_):
        return []

    monkeypatch.setattr(hook_trials, "call_in_process", held_in_another_process)
    report = verified("right_bank_on_trial:make", "--sequences", "5", "--seed", "7", code=0)

    assert report.splitlines()[-1].startswith("all rules kept, in ")
    assert "no worker could be started in a new process (the new worker found a different ledger)" in report
    note = "place has no await, so it was not interrupted, and no lost response was simulated"
    assert f"note     {note}" in report
    assert report.endswith("(seed 7)\n")


@ONLY_IN_TRIALS
@pytest.mark.usefixtures("blocking_bank")
def test_a_rule_broken_by_a_new_worker_is_reported_without_control_characters():
    """The module keeps its holds only in memory, so after a crash it places a second one."""
    report = verified("wrong_bank_on_trial:make", "--sequences", "0", code=1)

    assert "in a new process" not in report
    assert "BROKEN   A restarted worker finds the holds of the previous worker." in report
    assert "saw    2 holds are placed for A: hold-?[" in report
    assert "\x1b" not in report
    assert report.splitlines()[-1].startswith("1 rule broken")


@each(
    ("arguments", "error"),
    [
        (["make"], "verify-hooks: MODULE:FACTORY: must be module:factory, as in our_bank.hooks:make"),
        (["no_such_bank:make"], "verify-hooks: MODULE:FACTORY: cannot import no_such_bank"),
        (["right_bank_on_trial:none"], "MODULE:FACTORY: the module right_bank_on_trial has no function none"),
        (["wrong_bank_on_trial:fail"], "verify-hooks: the factory failed (OSError: no ledger)"),
        (["wrong_bank_on_trial:empty"], "verify-hooks: the factory must return hooks and held by name"),
        (["right_bank_on_trial:make", "--patience", "0"], "--patience: must be a finite number"),
    ],
)
def test_a_wrong_factory_or_option_is_reported(arguments, error):
    assert error in verified(*arguments, code=2)
