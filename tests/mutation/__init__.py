"""Faults planted in the source, one at a time: the tests must catch each of them.

If a test is merged, shortened or deleted, it may have been the only one that caught a fault. `faults.diff`
lists faults that would cost a bank money, or its evidence. Each is a small change of one file. Some come from
a mutation tool (cosmic-ray): comparisons reversed, conditions dropped, flags flipped. The others are mistakes
that a programmer might make.

Usage::

    python -m tests.mutation                     all of them, some six minutes on two quiet cores
    python -m tests.mutation --only mark         those with "mark" in the name
    python -m tests.mutation --list              list the faults and the tests that caught them last
    python -m tests.mutation --log DIR/log       skip faults that are in the log already
    python -m tests.mutation --record            write the test that caught each fault into the list
    pytest -m trial --trials=long tests/mutation the same as tests; `--trials=ci` takes one in fifteen

It copies the checkout to a temporary directory for each of two processes, plants one fault, and runs tests
until one fails: the test that caught the fault last, then those that catch the other faults of its file, then
those of the whole promise. That test must also pass without the fault. A run that hangs or dies counts as
caught. The exit code is 1 if any fault survives.

Maintenance:

- *The code of a fault has changed or moved*: `test_faults` fails, because the lines are not found once.
  Plant the same fault in the new code; if it can no longer be made, drop it, and say so in the commit.
- *Its test has moved*: nothing to do unless the file is gone. `--record` makes the search fast again.
- *A new fault*: add a block to `faults.diff`, and run it with `--only`. If it survives, write the missing
  test. A fault without a visible effect does not belong here.
"""
