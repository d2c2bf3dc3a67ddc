"""A worker as a command: from its options to its end, and what sends it its commands.

`process` is the worker as a process of its own; `trying` gives it a broker, which `embedded` starts, a
sandbox and a journal; `sending` is the other end of the broker; `addresses` reads and shows addresses.
"""
