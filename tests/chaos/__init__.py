"""Chaos: real workers between a real broker, a real database and a service with faults; all of them die.

Three workers of the command line's own ``worker`` take commands from NATS JetStream, with one journal in
PostgreSQL. They are killed, stopped and put to sleep at random, the broker is restarted, the database
stopped at once. In the end every command has been answered, and nothing exists twice or was lost.
"""
