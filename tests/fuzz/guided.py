"""One run guided by coverage: a process of its own, because libFuzzer ends the process that it runs in."""

import random
import sys

import atheris

with atheris.instrument_imports(include=["transfer_async"]):
    from tests.fuzz.mutation import mutate
    from tests.fuzz.targets import LARGEST, check


def vary(data: bytes, max_size: int, seed: int) -> bytes:
    """Half of the time a change of the JSON, else one of libFuzzer's own."""
    draw = random.Random(seed)
    if draw.random() < 0.5:
        return mutate(data, draw, largest=min(max_size, LARGEST))
    return bytes(atheris.Mutate(data, max_size))


if __name__ == "__main__":
    atheris.Setup(sys.argv, check, custom_mutator=vary)
    atheris.Fuzz()
