"""Real kills: processes are killed, stopped and put to sleep, and the harm is counted.

Three trials share the service, the bank and its books, the way of killing, the verdict and the report:

- `workers`: clients on many journal objects, killed at named points and at random, on SQLite or PostgreSQL
- `broker`: the command line's ``worker`` on NATS and PostgreSQL, which are stopped themselves, too
- `bulk`: the command that creates a file of orders, killed and run again until it is done

`python -m tests.kills workers --help` shows the options; what happens follows `--seed`, as far as the
machine lets it. Each ends with a comparison of what the service, the bank, the journal and those who
were told say of every key (`verdict`), and must notice the faults of our own making (`mutants`).
"""
