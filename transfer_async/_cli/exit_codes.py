"""How a command ends: its exit code."""

DONE = 0
"""All is as it was wanted."""

FAILED = 1
"""The command was used well, and met a no."""

USAGE = 2
"""A wrong use: an option, the environment, or an extra that is not installed."""

REFUSED, NOT_SENT, UNKNOWN = 3, 4, 5
"""Of `create`, where not every order is created: of these the highest that any order asks for."""

DIFFERENT = 3
"""Of `journal reconcile`: the journal and the export do not agree in everything."""

OTHER_SCOPE = 4
"""Of the commands of `journal`: the journal has keys of other scopes only."""

OWED = 3
"""Of `journal recover`: an undo is owed still, or a record cannot be read."""
