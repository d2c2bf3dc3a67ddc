"""The command `verify-hooks`: its report and its exit codes."""

import textwrap

import pytest

from tests.support.commands import invoke

RIGHT = """
    from transfer_async.testing import Holds

    holds = Holds()

    def balance():
        return -len(holds.standing)

    def make():
        return {"hooks": [holds.hook], "held": holds.held, "balance": balance}
"""
WRONG = """
    from transfer_async import FundsHold

    holds = []

    async def place(intent):
        holds.append(intent.id)
        return f"hold-\\x1b[{len(holds)}"

    async def release(intent, reference):
        holds[:] = [known for known in holds if known != intent.id]

    async def make():
        return {"hooks": [FundsHold(place, release)], "held": lambda intent: ["H"] * holds.count(intent)}

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


def test_right_hooks_end_well():
    told = verified("right_bank_on_trial:make", "--sequences", "5", "--seed", "7", code=0)

    assert told.splitlines()[-1].startswith("all rules kept, in ")
    assert "no worker could be started in a new process (it finds another ledger)" in told
    assert "note     place has no await, so it was not interrupted" in told
    assert told.endswith("(seed 7)\n")


def test_broken_rules_are_listed_without_control_characters():
    told = verified("wrong_bank_on_trial:make", "--sequences", "0", code=1)

    rule = "One intent.id has one hold. A second call of place returns the same hold"
    assert told.startswith(f"BROKEN   {rule}")
    assert "saw    2 holds are placed for A: H, H" in told
    assert "\x1b" not in told


IN_A_FILE = """
    import sqlite3
    from transfer_async import FundsHold

    db = sqlite3.connect("ledger.db", isolation_level=None, timeout=30)
    db.execute("CREATE TABLE IF NOT EXISTS hold (id INTEGER PRIMARY KEY, intent TEXT)")
    known = {}

    def rows(intent_id):
        return [f"hold-{row}" for (row,) in db.execute("SELECT id FROM hold WHERE intent = ?", [intent_id])]

    async def place(intent):
        print("placing")
        if intent.id not in known:
            known[intent.id] = KNOWN or db.execute("INSERT INTO hold (intent) VALUES (?)", [intent.id])
        return rows(intent.id)[0]

    async def release(intent, reference):
        db.execute("DELETE FROM hold WHERE intent = ?", [intent.id])

    def make():
        return {"hooks": [FundsHold(place, release)], "held": rows, "balance": lambda: 0, "close": db.close}
"""


@pytest.mark.usefixtures("blocking_bank")
@pytest.mark.parametrize(("known", "code"), [("None", 1), ("rows(intent.id)", 0)])
def test_what_a_module_keeps_in_memory_does_not_outlive_a_worker(tmp_path, known, code):
    """A cache in the module: after a crash the money would be held a second time."""
    module = f"bank_in_a_file_{code}"
    (tmp_path / f"{module}.py").write_text(
        textwrap.dedent(IN_A_FILE).replace("KNOWN", known), encoding="utf-8"
    )
    told = verified(f"{module}:make", "--sequences", "0", code=code)

    assert "in a new process" not in told
    if code:
        assert "BROKEN   A restarted worker finds the holds of the previous worker." in told
        assert "saw    2 holds are placed for A: " in told
        assert told.splitlines()[-1].startswith("1 rule broken")


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("make", "verify-hooks: MODULE:FACTORY: must be module:factory, as in our_bank.hooks:make"),
        ("no_such_bank:make", "verify-hooks: MODULE:FACTORY: cannot import no_such_bank"),
        ("right_bank_on_trial:none", "verify-hooks: MODULE:FACTORY: there is no function none in right_bank"),
        ("wrong_bank_on_trial:fail", "verify-hooks: the factory failed (OSError: no ledger)"),
        ("wrong_bank_on_trial:empty", "verify-hooks: the factory must return hooks and held by name"),
    ],
)
def test_a_wrong_factory_is_reported(factory, said):
    assert said in verified(factory, code=2)


def test_patience_is_some_time():
    assert "--patience: must be a finite number" in verified(
        "right_bank_on_trial:make", "--patience", "0", code=2
    )
