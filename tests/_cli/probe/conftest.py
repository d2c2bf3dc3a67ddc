import pytest

from tests.support.loop_time import LoopTime

from .prober import Watch


@pytest.fixture
def watch(loop_time: LoopTime) -> Watch:
    return Watch(loop_time)
