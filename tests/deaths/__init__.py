"""Real deaths: workers that are killed, stopped and robbed of their database, and a count of the harm.

The harness forks workers with the real client in front of a real service in a process of its own and
a durable journal. It hands them commands at least once, sends them SIGKILL or SIGSTOP at named points
or at random times, stops their PostgreSQL at once, and at the end compares what the service, the bank
and the journal say of every key.
"""
