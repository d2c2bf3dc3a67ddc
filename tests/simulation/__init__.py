"""The promise, simulated: the real pipeline and state machine; time, failures and all else from a seed."""
