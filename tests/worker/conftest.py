import pytest

from tests.worker.case import Case
from tests.worker.sides import SIDES


@pytest.fixture(params=SIDES)
def side(request):
    """The other side of a real broker."""
    return SIDES[request.param](request.getfixturevalue(request.param))


@pytest.fixture
async def case(side, tmp_path):
    async with Case(side, tmp_path) as case:
        yield case
