"""The bulk command: its parts, and the whole in processes of its own; `tests.kills.bulk` kills it."""
