"""Faults planted in the source, one at a time: the tests must catch each of them.

A test that is merged, shortened or dropped may have been the only one to see some fault. So here is a
list of faults that would cost a bank money, or its evidence, each a small change of one module:

- `mutated`: what a mutation tool (cosmic-ray) made of the modules on the way of an order: comparisons
  turned, conditions dropped, flags flipped. Those are kept that change what the module does.
- `by_hand`: what somebody might write instead, and believe to be right.

The mutants of `tests/simulation` and `tests/kills` are put in while a test runs, and tell whether *that*
trial sees them. These are put in the files, and tell whether *any* test does.

How to ask::

    python -m tests.planted                     all of them, some six minutes on two quiet cores
    python -m tests.planted --only mark         those with "mark" in the name
    python -m tests.planted --list              what there is, and which test caught it last
    python -m tests.planted --log DIR/log       those that are in the log already are not asked again
    python -m tests.planted --record            write `caught.txt` anew, after tests were moved or merged
    pytest -m trial --trials=long tests/planted the same as tests; `--trials=ci` takes one in ten

It copies the checkout, as it is, to a temporary directory for each of two processes, plants one fault,
and lets the tests run until the first fails. Asked first is the test that caught it last (`caught.txt`);
then the tests of the module (`places`); then those that prove the promise as a whole. A test that
catches must pass without the fault, or it proves nothing. A run that hangs or dies counts as caught.
The exit code is 1 if any fault survives.

What you may have to do:

- *A module has moved or was renamed*: `places` names it once.
- *The code of a fault has changed*: its snippet is not found once any more, and `test_planted` says so.
  Plant the same fault in the new code; if it can no longer be made, drop it, and say so in the commit.
- *Its test has moved*: nothing; the tests of the module are asked next. `--record` makes it quick again.
- *A new fault*: an entry in `by_hand`, run with `--only`. If it survives, the test is missing: write it.
  A fault that changes nothing which anybody could see is none, and does not belong here.
"""
