"""Hostile responses: anything that the service, or an attacker in its place, may send.

`python -m tests.fuzz --seconds 600` runs the targets for ten minutes, guided by coverage where atheris is
installed (`pip install atheris`), else by chance. The test-suite runs the same for a few seconds.
"""
