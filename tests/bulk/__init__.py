"""The bulk command: its parts, the whole in processes of its own, and a trial in which it is killed.

`python -m tests.bulk --lines 100000 --kills 5` is the long form of the trial.
"""
