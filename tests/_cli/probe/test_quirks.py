"""The probe finds each quirk of a service, and a sandbox with the resulting profile has that quirk, too."""

from pathlib import Path

import pytest

from tests.support.trials import ONLY_IN_TRIALS
from transfer_async.sandbox import Sandbox, load_profile

from .prober import probe
from .quirks import QUIRKS, Quirky

# Read at import, when no event loop runs.
RECORDED = load_profile(Path(__file__).with_name("service-profile-1.json"))

OFTEN = {
    "silence without a token",
    "one request a connection",
    "two orders from one body",
    "409 for a repetition",
}
"""The quirks that run by default."""

MARKS = {name: [] if name in OFTEN else ONLY_IN_TRIALS for name in QUIRKS}


@pytest.mark.parametrize("quirk", [pytest.param(QUIRKS[name], id=name, marks=MARKS[name]) for name in QUIRKS])
async def test_a_quirk_is_inferred_and_imitated(quirk, tmp_path, watch):
    requests, idle = quirk.watched
    settings = {"levels": quirk.levels, "orders": quirk.orders, "requests": requests, "idle": idle}

    async with Quirky(quirk, sleep=watch.sleep) as service:
        first = await probe(service, tmp_path / "first", watch, **settings)
    async with Sandbox(profile=first.profile, sleep=watch.sleep) as sandbox:
        second = await probe(sandbox, tmp_path / "second", watch, **settings)

    assert quirk.shows(first.profile)
    assert bool(first.stopped) is quirk.stops
    assert second.profile == first.profile
    assert second.stopped == first.stopped


async def test_a_sandbox_with_a_stored_profile_gives_that_profile(tmp_path, watch):
    """The file has version 1 and is never rewritten, so that the profiles of users stay usable.

    Its service has more quirks: a page for an unknown path, a proxy that names itself, an id in another
    header, 400 for each refusal, and connections that end after eight requests or 15 idle seconds.
    """
    async with Sandbox(profile=RECORDED, sleep=watch.sleep) as sandbox:
        again = await probe(sandbox, tmp_path / "again", watch, levels=(0, 1, 2), idle=20.0)

    assert again.profile == RECORDED
    assert (again.profile.answers["order"].status, again.profile.answers["cut-again"].status) == (201, 409)
