"""``transfer-async verify-hooks``: what it says, and its exit codes."""

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
    (tmp_path / "right_bank_on_trial.py").write_text(textwrap.dedent(RIGHT))
    (tmp_path / "wrong_bank_on_trial.py").write_text(textwrap.dedent(WRONG))


def verified(factory, *options, code):
    result = invoke("verify-hooks", factory, "--late", "0", *options)
    assert result.exit_code == code, result.output
    return result.output


def test_right_hooks_end_well():
    told = verified("right_bank_on_trial:make", "--sequences", "5", "--seed", "7", code=0)

    assert told.startswith("all rules kept, in ")
    assert told.endswith("(seed 7)\n")


def test_wrong_hooks_are_told_rule_by_rule_in_texts_that_are_fit_for_a_terminal():
    told = verified("wrong_bank_on_trial:make", "--sequences", "0", code=1)

    assert told.startswith("BROKEN   Asked again for the same intent.id, place gives the same hold back")
    assert "saw    2 holds stand for A: H, H" in told
    assert "\x1b" not in told


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
def test_what_is_no_factory_is_a_wrong_use(factory, said):
    assert said in verified(factory, code=2)


def test_patience_is_some_time():
    assert "--patience: must be a finite number" in verified(
        "right_bank_on_trial:make", "--patience", "0", code=2
    )
