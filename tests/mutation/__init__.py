"""Faults planted in the source, one at a time: the tests must catch each of them.

A test that is merged, shortened or dropped may have been the only one to catch some fault. `faults.diff`
lists faults that would cost a bank money, or its evidence. Each is a small change of one file. Some come
from a mutation tool (cosmic-ray): comparisons turned, conditions dropped, flags flipped. The others are
what somebody might write instead, and believe to be right.

How to ask::

    python -m tests.mutation                     all of them, some six minutes on two quiet cores
    python -m tests.mutation --only mark         those with "mark" in the name
    python -m tests.mutation --list              what there is, and which test caught it last
    python -m tests.mutation --log DIR/log       those that are in the log already are not asked again
    python -m tests.mutation --record            write into the list which test caught which fault
    pytest -m trial --trials=long tests/mutation the same as tests; `--trials=ci` takes one in fifteen

It copies the checkout, as it is, to a temporary directory for each of two processes, plants one fault,
and lets the tests run until the first fails: the test that caught the fault last, then those that catch
the other faults of its file, then those that prove the promise as a whole. A test that catches must pass
without the fault, or it proves nothing. A run that hangs or dies counts as caught.
The exit code is 1 if any fault survives.

What you may have to do:

- *The code of a fault has changed or moved*: its lines are not found once, and `test_faults` says so.
  Plant the same fault in the new code; if it can no longer be made, drop it, and say so in the commit.
- *Its test has moved*: nothing, unless its file is gone. `--record` makes the search quick again.
- *A new fault*: a block in `faults.diff`, run with `--only`. If it survives, the test is missing: write it.
  A fault that changes nothing which anybody could see is none, and does not belong here.
"""
