"""Simulate the promise with the real pipeline and state machine; a seed decides time and failures."""
