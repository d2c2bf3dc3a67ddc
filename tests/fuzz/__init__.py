"""Hostile responses: anything that the service, or an attacker in its place, may send.

`pytest tests/fuzz` changes responses at random. `python -m tests.fuzz --seconds 600` is guided by coverage,
for which it needs atheris (`pip install atheris`).
"""
