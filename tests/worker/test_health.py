import asyncio
from unittest.mock import AsyncMock

import aiohttp

from tests.support.loop_time import MUST_RUN_OUT
from transfer_async._models.errors import JournalFailed
from transfer_async.worker.consumer import Health


async def asked(address, path):
    async with aiohttp.ClientSession() as session, session.get(address + path) as answer:
        return answer.status, await answer.json()


async def test_a_problem_is_reported_until_it_is_over():
    health = Health()
    async with health.served() as address:
        health.trouble("service", "the token is not good")
        health.trouble("broker", "delivers no messages")
        why = ["service: the token is not good", "broker: delivers no messages"]
        assert await asked(address, "/ready") == (503, {"ready": False, "why": why})
        assert await asked(address, "/live") == (200, {"live": True, "why": []})

        health.well("service")
        health.well("broker")
        assert await asked(address, "/ready") == (200, {"ready": True, "why": []})


async def test_a_worker_that_has_ended_is_neither_live_nor_ready():
    health = Health()
    health.ended("its loop has ended")
    async with health.served() as address:
        assert await asked(address, "/live") == (503, {"live": False, "why": ["its loop has ended"]})
        assert (await asked(address, "/ready"))[0] == 503


async def test_a_failed_health_check_shows_only_the_type_of_its_error():
    """The package's own errors are shown in full, because they contain nothing confidential."""

    checks = {
        "journal": AsyncMock(side_effect=OSError("postgresql://user:password@db")),
        "books": AsyncMock(side_effect=JournalFailed("the disk is full")),
        "broker": asyncio.Event().wait,
        "clock": AsyncMock(),
    }

    assert await Health(checks, patience=MUST_RUN_OUT).not_ready() == [
        "journal: OSError",
        "books: the disk is full",
        "broker: TimeoutError",
    ]
