"""What a service does is inferred; a sandbox that does as the profile says is probed to the same one."""

from pathlib import Path

import pytest

from tests.support.loop_time import LoopTime
from transfer_async.sandbox import Sandbox, load_profile

from .prober import Watch, probed
from .quirks import QUIRKS, Quirk, Quirky

RECORDED = load_profile(Path(__file__).with_name("service-profile-1.json"))  # read outside of any loop


@pytest.mark.parametrize("quirk", QUIRKS.values(), ids=QUIRKS)
async def test_a_habit_is_inferred_and_the_sandbox_takes_it_on(quirk: Quirk, tmp_path, loop_time: LoopTime):
    watch = Watch(loop_time)
    requests, idle = quirk.watched
    wanted = {"levels": quirk.levels, "orders": quirk.orders, "requests": requests, "idle": idle}

    async with Quirky(quirk, sleep=watch.sleep) as service:
        first = await probed(service, tmp_path / "first", watch, **wanted)
    async with Sandbox(profile=first.profile, sleep=watch.sleep) as sandbox:
        second = await probed(sandbox, tmp_path / "second", watch, **wanted)

    assert quirk.shows(first.profile)
    assert bool(first.stopped) is quirk.stops
    assert second.profile == first.profile
    assert second.stopped == first.stopped


async def test_a_service_of_which_only_the_profile_is_left_is_still_what_it_was(
    tmp_path, loop_time: LoopTime
):
    """The file is one of version 1, kept as it was written: whoever has one can go on with it."""
    watch = Watch(loop_time)

    async with Sandbox(profile=RECORDED, sleep=watch.sleep) as sandbox:
        again = await probed(sandbox, tmp_path / "again", watch, levels=(0, 1, 2), idle=20.0)

    assert again.profile == RECORDED
    assert (again.profile.answers["order"].status, again.profile.answers["cut-again"].status) == (201, 409)
