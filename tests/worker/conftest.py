import pytest

from tests.worker.case import Case
from tests.worker.sides import SIDES
from transfer_async.integrations.faststream import redis
from transfer_async.integrations.faststream import worker as workers


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Shorten the worker's polling intervals."""
    monkeypatch.setattr(workers, "BACK_OFF", 0.05)
    monkeypatch.setattr(redis, "MOVE_EVERY", 0.05)


@pytest.fixture(params=SIDES)
def side(request):
    """Return the program on the other side of a real broker."""
    return SIDES[request.param](request.getfixturevalue(request.param))


@pytest.fixture
async def case(side, tmp_path):
    async with Case(side, tmp_path) as case:
        yield case
