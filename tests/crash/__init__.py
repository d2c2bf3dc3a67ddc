"""Trials that kill, stop and pause real processes, and count every broken promise.

- `workers`: clients on several journal objects, killed at named points and at random, on SQLite or PostgreSQL
- `broker`: the command ``worker`` on NATS and PostgreSQL, which are restarted as well
- `bulk`: the command that creates a file of orders, killed and run again until it ends
- `probe`: the command that sends orders under a cap, killed and run again
- `upgrades`: the upgrade of a journal of an earlier version
- `decisions`: the command that makes the decisions of a file

`python -m tests.crash --help` shows the options. `--seed` determines every choice, but not the
machine's timing. `workers`, `broker` and `bulk` end with a comparison for each key: the service's orders, the
bank's holds, the journal's state, and the outcomes that were reported (`verdict`). It begins with what the
simulation checks too (`tests.support.promises`). All trials must notice planted faults (`tests/mutation`).
"""
