"""The command line, an extra: it reads options, calls the package below, and prints the results.

It may import every layer; `launcher` works without typer, so that it can report that typer is missing.
"""
