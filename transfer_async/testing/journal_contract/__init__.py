"""The journal's contract, as tests to subclass: whoever writes a `Journal` runs what our own run."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from transfer_async.journal import Journal
from transfer_async.testing.journal_contract.claiming import Cancelling, Claiming, Sharing
from transfer_async.testing.journal_contract.four_eyes import FourEyes
from transfer_async.testing.journal_contract.keeping import Keeping
from transfer_async.testing.journal_contract.settling import Owing, Settling, Stories
from transfer_async.testing.journal_contract.support import JournalTime, LetPass

__all__ = ["JournalContract", "JournalTime"]


# --- suite -------------------------------------------------------------------------------------------
# The whole suite: the tests of every part, and the fixtures they take.


@pytest.mark.asyncio
class JournalContract(Claiming, Settling, Owing, Keeping, FourEyes, Cancelling, Sharing, Stories):
    """What every journal must do: subclass it as ``class TestOurJournal(JournalContract):``.

    Give it one fixture, ``new_journal``: an empty journal that has not been opened, whose time is that of the
    fixture ``journal_time``::

        class TestOurJournal(JournalContract):
            @pytest.fixture
            def new_journal(self, journal_time, tmp_path):
                return OurJournal(tmp_path / "journal", utc=journal_time.utc)

    A second one, ``another_journal``, is one more on the same store, as another worker has it. Without it the
    tests of two workers are left out; give it if your store can be shared::

            @pytest.fixture
            def another_journal(self, journal_time, tmp_path):
                return OurJournal(tmp_path / "journal", utc=journal_time.utc)

    It needs pytest and pytest-asyncio, in either of its modes. A test that takes more of the journal's time
    than a few milliseconds waits for the journal, never for a clock.
    """

    stories = 20
    """How many stories are played; each is a seed."""

    @pytest.fixture
    def journal_time(self) -> JournalTime:
        """The journal's time; it stands still until a test moves it."""
        return JournalTime()

    @pytest.fixture
    def new_journal(self, journal_time: JournalTime) -> Journal:
        """An empty journal on that time, not opened yet: yours."""
        raise NotImplementedError("give JournalContract a fixture new_journal(self, journal_time)")

    @pytest.fixture
    def another_journal(self) -> Journal:
        """One more on the store and time of ``new_journal``, not opened yet: yours, if it can be shared."""
        pytest.skip("give JournalContract a fixture another_journal: one more on the same store")

    @pytest_asyncio.fixture
    async def journal(self, new_journal: Journal) -> AsyncIterator[Journal]:
        """The same, open."""
        async with new_journal as journal:
            yield journal

    @pytest_asyncio.fixture
    async def beside(self, another_journal: Journal) -> AsyncIterator[Journal]:
        """The other one, open while the first is."""
        async with another_journal as beside:
            yield beside

    @pytest.fixture
    def pass_time(self, journal_time: JournalTime) -> LetPass:
        """Lets so many seconds pass."""
        return journal_time.pass_
