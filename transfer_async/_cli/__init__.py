"""The command line ``transfer-async``, an extra: it reads options, calls the package, and prints results.

This package may import every layer. `launcher` works without typer, so that it can report a missing typer.
"""
