"""A run guided by coverage, in its own process, because libFuzzer ends the process in which it runs."""

import random
import sys

import atheris

with atheris.instrument_imports(include=["transfer_async"]):
    from tests.fuzz.mutation import mutate
    from tests.fuzz.targets import LARGEST, check


def vary(data: bytes, max_size: int, seed: int) -> bytes:
    """Change the input: half of the time its JSON, otherwise with libFuzzer's own mutations."""
    draw = random.Random(seed)
    if draw.random() < 0.5:
        return mutate(data, draw, largest=min(max_size, LARGEST))
    return bytes(atheris.Mutate(data, max_size))


if __name__ == "__main__":
    atheris.Setup(sys.argv, check, custom_mutator=vary)
    atheris.Fuzz()
