"""The ``transfer-async`` command line. It requires the ``cli`` extra.

This package may import every layer. `launcher` can be imported without typer, and reports if typer is not
installed.
"""
