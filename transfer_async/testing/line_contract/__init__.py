"""The line's contract, as tests to subclass: whoever writes a broker's `Row` runs what our own run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from transfer_async.testing.line_contract.delivering import Answering, Away, Confirming, Delivering
from transfer_async.testing.line_contract.killing import Killing, Working
from transfer_async.testing.line_contract.line_trial import Crew, LineTrial, NewLine

__all__ = ["BrokerContract"]


# --- line suite --------------------------------------------------------------------------------------
# The whole suite: the tests of every part, and the fixtures they take.


@pytest.mark.asyncio
class BrokerContract(Delivering, Answering, Confirming, Working, Killing):
    """What every line must do: subclass it as ``class TestOurLine(BrokerContract):``.

    Give it one fixture, ``new_line``: what makes a line, not opened yet, of the settings it is given. Each is
    another worker's, and all are at one broker. What is published is read by a line of yours, too::

        class TestOurLine(BrokerContract):
            @pytest.fixture
            def new_line(self, broker):
                return partial(OurLine, broker.address)

    A second one, ``broker_away``, takes the broker out of reach: it is stopped and started again, or its
    connections are cut, and it has then what it had before. Without it the tests of that are left out::

            @pytest.fixture
            def broker_away(self, broker):
                @asynccontextmanager
                async def away():
                    await broker.stop()
                    yield
                    await broker.start()

                return away

    It needs pytest and pytest-asyncio, in either of its modes.
    """

    ack_wait: float = 1.0
    """Seconds after which a message that nobody answers comes again; more for a broker that is slower."""

    kills = 1
    """How many workers are killed, in processes of their own; 0 where a line cannot go to another process."""

    @pytest.fixture
    def new_line(self) -> NewLine:
        """Makes a line of the settings it is given, at one broker: yours."""
        raise NotImplementedError("give BrokerContract a fixture new_line")

    @pytest.fixture
    def broker_away(self) -> Away | None:
        """An async context manager, within which the broker is out of reach: yours, if you can."""
        return None

    @pytest_asyncio.fixture
    async def line_trial(self, new_line: NewLine) -> AsyncIterator[LineTrial]:
        """Hands at the line, with subjects of their own."""
        async with LineTrial(new_line, ack_wait=self.ack_wait) as trial:
            yield trial

    @pytest_asyncio.fixture
    async def line_crew(self, line_trial: LineTrial, tmp_path: Path) -> AsyncIterator[Crew]:
        """Workers at the line."""
        async with Crew(line_trial, tmp_path) as crew:
            yield crew
