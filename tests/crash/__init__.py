"""Real kills: processes are killed, stopped and put to sleep, and the harm is counted.

Three trials share the service, the bank and its books, the way of killing, the verdict and the report; of
these the fourth, which needs no service, has the way of killing alone:

- `workers`: clients on many journal objects, killed at named points and at random, on SQLite or PostgreSQL
- `broker`: the command line's ``worker`` on NATS and PostgreSQL, which are stopped themselves, too
- `bulk`: the command that creates a file of orders, killed and run again until it is done
- `upgrades`: a journal of an earlier version that is brought to this one's format

`python -m tests.crash workers --help` shows the options; what happens follows `--seed`, as far as the
machine lets it. Each of the three ends with a comparison of what the service, the bank, the journal
and those who were told say of every key (`verdict`); all must notice planted faults (`tests/mutation`).
"""
