"""Real deaths: workers that are killed, stopped and robbed of their database, and a count of the harm.

The harness forks workers, each with some clients on as many journal objects, of which now and then one
is closed and another opened, in front of a real service in a process of its own and a durable journal,
which visitors open and close all the time. It hands them commands at least once, sends them SIGKILL or
SIGSTOP at named points or at random times, stops their PostgreSQL at once, and at the end compares what
the service, the bank and the journal say of every key.
"""
