"""What a service does is inferred; a sandbox that does as the profile says is probed to the same one."""

import pytest

from tests.support.loop_time import LoopTime
from transfer_async.sandbox import Sandbox

from .prober import Watch, probed
from .quirks import QUIRKS, Quirk, Quirky


def test_there_are_enough_of_them():
    assert len(QUIRKS) >= 20


@pytest.mark.parametrize("quirk", QUIRKS.values(), ids=QUIRKS)
async def test_a_habit_is_inferred_and_the_sandbox_takes_it_on(quirk: Quirk, tmp_path, loop_time: LoopTime):
    watch = Watch(loop_time)
    wanted = {"levels": quirk.levels, "orders": quirk.orders}

    async with Quirky(quirk, sleep=watch.sleep) as service:
        first = await probed(service, tmp_path / "first", watch, **wanted)
    async with Sandbox(profile=first.profile, sleep=watch.sleep) as sandbox:
        second = await probed(sandbox, tmp_path / "second", watch, **wanted)

    assert quirk.shows(first.profile)
    assert bool(first.stopped) is quirk.stops
    assert second.profile == first.profile
    assert second.stopped == first.stopped


async def test_a_profile_of_everything_goes_round(tmp_path, loop_time: LoopTime):
    watch = Watch(loop_time)

    async with Sandbox(sleep=watch.sleep) as service:
        first = await probed(service, tmp_path / "first", watch, levels=(0, 1, 2))
    async with Sandbox(profile=first.profile, sleep=watch.sleep) as sandbox:
        second = await probed(sandbox, tmp_path / "second", watch, levels=(0, 1, 2))

    assert first.profile.levels == (0, 1, 2)
    assert second.profile == first.profile
