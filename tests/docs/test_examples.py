"""The examples in docs/examples work, and their tests fail for a bank that pays twice."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType

import aiohttp
import pytest
from typer.testing import CliRunner
from yarl import URL

from tests.docs.story import ROOT, python_block, run_pytest
from tests.support.trials import ONLY_IN_TRIALS
from transfer_async import Outcome
from transfer_async._cli.app import app
from transfer_async.sandbox import CloseAfterProcessing, Sandbox

EXAMPLES = ROOT / "docs/examples"
DIRECTORIES = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name[0] not in "_.")
SERVICES = ("aiohttp_service", "fastapi_service")

PAYMENT = {
    "customer": "ada.eze@example.com",
    "beneficiary": "ben.okri@example.com",
    "amount": "100.00",
    "rate": "1500",
}

Load = Callable[[str, str], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Load a module of an example as ``python DIRECTORY`` does. Unload its imports after the test."""
    before = set(sys.modules)

    def load(example: str, module: str) -> ModuleType:
        monkeypatch.syspath_prepend(EXAMPLES / example)
        spec = importlib.util.spec_from_file_location(
            f"{example}.{module}", EXAMPLES / example / f"{module}.py"
        )
        assert spec is not None
        assert spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = made
        spec.loader.exec_module(made)
        return made

    yield load
    for name in set(sys.modules) - before:
        if EXAMPLES in Path(getattr(sys.modules[name], "__file__", None) or "/").parents:
            del sys.modules[name]


# --- the services -------------------------------------------------------------------------------


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest, load: Load) -> ModuleType:
    if request.param == "fastapi_service":
        pytest.importorskip("fastapi", reason="FastAPI is not installed")
        pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    return load(request.param, "__main__")


async def test_a_services_responses_match_what_happened(
    service: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = (await service.play(tmp_path)).seen
    created = [body["order_id"] for status, body in seen if status in (200, 201)]

    assert [status for status, _ in seen] == [201, 201, 422, 422, 503, 201, 202, 202, 201, 200]
    assert created == [created[0]] * 2 + [created[2]] + [created[3]] * 2
    assert [body["order_may_exist"] for _, body in seen] == [True] * 3 + [False] * 2 + [True] * 5
    assert capsys.readouterr().out.endswith("orders at the service: 3; holds at the bank: 3\n")


ODD_PAYMENTS: list[tuple[dict[str, str], str, set[int]]] = [
    ({"Idempotency-Key": "k"}, "{", {400, 422}),
    ({"Idempotency-Key": "k"}, "[]", {400, 422}),
    ({"Idempotency-Key": "k"}, "{}", {422}),
    ({"Idempotency-Key": "k"}, json.dumps(PAYMENT | {"amount": 100.25}), {422}),
    ({"Idempotency-Key": "k"}, json.dumps(PAYMENT | {"amount": "1e2"}), {422}),
    ({"Idempotency-Key": "k" * 201}, json.dumps(PAYMENT), {422}),
    ({}, json.dumps(PAYMENT), {400, 422}),
]


async def test_a_service_sends_no_order_for_an_invalid_request(service: ModuleType, tmp_path: Path) -> None:
    """Without a key, a repeated request pays again."""
    async with at_service(service, tmp_path) as (sandbox, session):
        for headers, body, statuses in ODD_PAYMENTS:
            typed = headers | {"Content-Type": "application/json"}
            async with session.post("/payments", data=body, headers=typed) as reply:
                assert reply.status in statuses, body

    assert not sandbox.requests


async def test_a_key_with_a_slash_can_be_queried(service: ModuleType, tmp_path: Path) -> None:
    async with at_service(service, tmp_path) as (sandbox, session):
        sandbox.faults.add(CloseAfterProcessing())
        async with session.post("/payments", json=PAYMENT, headers={"Idempotency-Key": "2026/1"}) as reply:
            ask = (await reply.json())["ask"]
        async with session.get(URL(ask, encoded=True)) as reply:
            assert (await reply.json())["state"] == "in_doubt"
        async with session.get("/payments/another") as reply:
            assert reply.status == 404


@asynccontextmanager
async def at_service(
    service: ModuleType, directory: Path
) -> AsyncIterator[tuple[Sandbox, aiohttp.ClientSession]]:
    journal = directory / "payments.journal"
    async with Sandbox() as sandbox:
        where = {"base_url": sandbox.base_url, "token": sandbox.token, "journal": journal}
        app = service.make_app(service.Bank(), **where)
        async with service.serving(app) as url, aiohttp.ClientSession(url) as session:
            yield sandbox, session


def test_the_examples_have_the_same_shared_files() -> None:
    """Each directory must be complete, so that it can be copied."""
    for name, directories in {"bank.py": (*SERVICES, "worker"), "callers.py": SERVICES}.items():
        texts = {(EXAMPLES / directory / name).read_text("utf-8") for directory in directories}
        assert len(texts) == 1, name


async def test_the_worker_publishes_the_outcome_of_each_command(load: Load, tmp_path: Path) -> None:
    worker = await asyncio.to_thread(load, "worker", "__main__")
    broker, sandbox = await worker.play(tmp_path)

    assert [(outcome.key, outcome.outcome) for outcome in broker.outcomes] == [
        ("payment-1", Outcome.CREATED),
        ("payment-1", Outcome.CREATED),
        ("payment-2", Outcome.REFUSED),
        ("payment-3", Outcome.CREATED),
        ("payment-4", Outcome.UNKNOWN),
        ("payment-4", Outcome.CREATED),
    ]
    assert len(sandbox.orders) == 3
    assert [body for body, _ in broker.dead_letters] == [b"what is this?"]


@pytest.fixture
def payroll(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = load("payroll", "__main__")
    shutil.copy(made.PAYROLL, tmp_path)
    monkeypatch.chdir(tmp_path)
    return made


async def test_the_payroll_ends_with_every_line_created_once(
    payroll: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(arguments: list[str], environment: Mapping[str, str], directory: Path) -> int:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return (await asyncio.to_thread(CliRunner().invoke, app, arguments)).exit_code

    codes, sandbox = await payroll.play(tmp_path, run)

    assert codes == [0, 5, 0, 0, 0, 0]
    assert len(sandbox.orders) == 3


@ONLY_IN_TRIALS
def test_the_documented_tests_fail_for_a_bank_that_pays_twice(tmp_path: Path) -> None:
    """Tests that pass for any bank would be useless. Without a key, the client makes one for each call."""
    test, code = (
        (EXAMPLES / "own_tests" / name).read_text("utf-8") for name in ("test_payments.py", "payments.py")
    )
    of_page = python_block(ROOT / "docs/testing.md", "test_payments.py")
    files = {
        "payments.py": code,
        "test_payments.py": test,
        "twice.py": code.replace("key=payment_id", "key=None"),
        "test_twice.py": test.replace("from payments import", "from twice import"),
        "test_page_twice.py": of_page.replace('key="payment-8731"', "key=None"),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")

    _, output = run_pytest(tmp_path, "-q", "--tb=no")
    failed = dict.fromkeys(re.findall(r"^FAILED (test_\w+)\.py::(\w+)", output, re.MULTILINE))

    assert [file for file, _ in failed].count("test_page_twice") == 1
    assert [name for file, name in failed if file == "test_twice"] == [
        "test_a_payment_is_paid_and_its_hold_stays",
        "test_a_lost_answer_keeps_the_hold_and_is_never_paid_twice",
        "test_a_lost_answer_is_found_on_the_statement",
        "test_whatever_goes_wrong_nobody_is_paid_twice",
        "test_the_desk_alone_without_sockets",
    ]
    assert not [file for file, _ in failed if file == "test_payments"]
    assert "33 passed" in output


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_each_examples_readme_has_one_command(directory: str) -> None:
    readme, table = (
        path.read_text("utf-8") for path in (EXAMPLES / directory / "README.md", EXAMPLES / "README.md")
    )
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    install, run = commands.splitlines()
    row = next(line for line in table.splitlines() if f"[{directory}]" in line)

    assert install.startswith("pip install ")
    assert run in (f"python docs/examples/{directory}", f"pytest docs/examples/{directory}")
    assert f"| `{install}` | `{run}` |" in row
    assert run.startswith("pytest") or (EXAMPLES / directory / "__main__.py").is_file()
