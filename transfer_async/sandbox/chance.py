"""Seeded chance: whatever the sandbox makes up or leaves to luck is the same for the same seed."""

from random import Random


class Chance(Random):
    """A source of made-up data and scripted luck, never of secrets; the seed is an int or a text."""
