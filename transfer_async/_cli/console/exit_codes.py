"""How every command ends."""

USAGE = 2
"""The exit code of a wrong use: an option, the environment, or an extra that is not installed."""
