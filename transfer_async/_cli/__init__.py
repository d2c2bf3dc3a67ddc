"""The ``transfer-async`` command line. The command line requires the ``cli`` extra.

This package may import every layer. The module `launcher` can be imported without typer, and reports an error
if typer is not installed.
"""
