"""The deployment files and the lock files contain only existing names. No container is run here."""

import re
import tomllib
from typing import Any

import aiohttp
import pytest
import typer
import yaml
from packaging.requirements import Requirement

from tests.docs.story import ROOT
from transfer_async._cli.app import app
from transfer_async.worker import Health

DEPLOY = ROOT / "docs/deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
DEPLOYMENT, BUDGET = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8"))
OURS = {name: one for name, one in COMPOSE["services"].items() if one["image"] == "transfer-async"}
POD = DEPLOYMENT["spec"]["template"]["spec"]
(WORKER,) = POD["containers"]
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
LOCKS = {
    ".ci/requirements.txt": ("test", "lint", "docs"),
    "docs/deploy/requirements.txt": ("cli", "desk", "nats", "postgres", "seal", "uvloop"),
}


def parsed(
    command_line: list[str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Return the options that ``transfer-async`` reads from its arguments and environment."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    name, *arguments = [re.sub(r"\$\{\w+.*?\}", "value", word) for word in command_line]
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined] # the command is a group
    return dict(command.make_context(name, arguments).params)


# --- commands -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command_line", "environment", "expected"),
    [
        *(
            pytest.param(OURS[name]["command"], OURS[name].get("environment", {}), expected, id=name)
            for name, expected in {"sandbox": 8080, "worker": "0.0.0.0:8081", "desk": 8082}.items()
        ),
        pytest.param(
            WORKER["args"],
            {item["name"]: item.get("value", item["name"]) for item in WORKER["env"]},
            "your_bank:hooks",
            id="kubernetes",
        ),
    ],
)
def test_each_service_has_a_valid_command_that_uses_its_variables(
    command_line: list[str], environment: dict[str, str], expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [*parsed(command_line, environment, monkeypatch).values()]

    assert [value for value in environment.values() if value not in options] == []
    assert expected in options


def test_the_worker_of_compose_reaches_the_sandbox_on_loopback() -> None:
    worker, sandbox = OURS["worker"], OURS["sandbox"]

    assert worker["network_mode"] == "service:sandbox"
    assert worker["environment"]["TRANSFER_BASE_URL"] == "http://127.0.0.1:8080"
    assert OURS["desk"]["environment"]["TRANSFER_BASE_URL"] == worker["environment"]["TRANSFER_BASE_URL"]
    assert sandbox["command"][1:3] == ["--port", "8080"]
    assert sandbox["ports"] == ["127.0.0.1:8081:8081"]
    assert {"nats", "postgres"} <= set(COMPOSE["services"])


async def test_the_probes_ask_paths_that_the_worker_serves() -> None:
    probes = [WORKER[f"{probe}Probe"]["httpGet"] for probe in ("startup", "liveness", "readiness")]
    asked = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", OURS["worker"]["healthcheck"]["test"][-1])
    assert asked is not None
    async with Health().served() as address, aiohttp.ClientSession(address) as session:
        for path in {*(probe["path"] for probe in probes), asked[2]}:
            async with session.get(path) as response:
                assert response.status == 200, path

    assert asked[1] == "8081"
    assert WORKER["ports"] == [{"name": "health", "containerPort": 8081}]
    assert {probe["port"] for probe in probes} == {"health"}


def test_each_name_that_the_page_tells_an_operator_to_type_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DEPLOY / "README.md").read_text(encoding="utf-8").replace("\n   ", " ")
    secret, values = re.findall(r"create secret generic ([\w-]+)((?: --from-literal=\w+=[^ `]+)+)", text)[0]
    references = [item["valueFrom"]["secretKeyRef"] for item in WORKER["env"] if "valueFrom" in item]
    (desk,) = re.findall(r"kubectl exec -it POD -- transfer-async (.+)", text)
    given = parsed(desk.split(), {"TRANSFER_BASE_URL": "b", "TRANSFER_JOURNAL": "j"}, monkeypatch)

    assert {(one["name"], one["key"]) for one in references} == {
        (secret, name) for name in re.findall(r"--from-literal=(\w+)=", values)
    }
    assert f"port-forward POD {given['port']}:{given['port']}" in text
    assert f"app={DEPLOYMENT['metadata']['labels']['app']}" in text
    # The command does not start without these.
    assert set(re.findall(r"(\w+)=any", text)) == set(re.findall(r"\$\{(\w+):\?", str(COMPOSE)))
    assert {f"docs/deploy/{path.name}" for path in DEPLOY.iterdir()} == {
        *re.findall(r"^\| `(docs/deploy/[\w.]+)`", text, re.MULTILINE),
        "docs/deploy/README.md",
    }


def test_the_services_of_compose_refer_to_each_other_by_their_names() -> None:
    services = COMPOSE["services"]
    waits = [wait for service in services.values() for wait in service.get("depends_on", {}).items()]
    mounted = {path.partition(":")[0] for service in services.values() for path in service.get("volumes", ())}
    hosts = re.findall(r"(?:nats://|@)([a-z]+):", str(COMPOSE))

    assert {name for name, _ in waits} | set(hosts) <= set(services)
    assert mounted == set(COMPOSE["volumes"])
    assert all(
        "healthcheck" in services[name] for name, wait in waits if wait["condition"] == "service_healthy"
    )


# --- safety -------------------------------------------------------------------------------------


def test_containers_have_no_rights_and_write_nothing() -> None:
    for service in OURS.values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
    assert WORKER["securityContext"]["readOnlyRootFilesystem"]
    assert POD["securityContext"]["runAsNonRoot"]
    assert f"USER {POD['securityContext']['runAsUser']}:" in DOCKERFILE
    assert POD["terminationGracePeriodSeconds"] > 40  # as docs/workers.md requires
    assert OURS["worker"]["stop_grace_period"] == "45s"


def test_the_deployment_labels_match_their_selectors() -> None:
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]

    for resource in (DEPLOYMENT, BUDGET):
        assert resource["spec"]["selector"]["matchLabels"] == labels


# --- the image and the lock files ---------------------------------------------------------------


def test_the_image_is_made_of_files_that_exist() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    readme = (DEPLOY / "README.md").read_text(encoding="utf-8")

    assert all((ROOT / path).exists() for paths in copied for path in paths.split())
    assert 'ENTRYPOINT ["transfer-async"]' in DOCKERFILE
    assert "transfer-async" in PROJECT["scripts"]
    for version in re.findall(r"^FROM python:([\d.]+)-slim", DOCKERFILE, re.MULTILINE):
        assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]
        assert f"python{version}/site-packages" in readme


def needed(name: str) -> set[Requirement]:
    """Return the requirements of an extra or a dependency group, and of the extras that it includes."""
    found = set(map(Requirement, (PROJECT["optional-dependencies"] | PYPROJECT["dependency-groups"])[name]))
    ours = {requirement for requirement in found if requirement.name == "transfer_async"}
    return (found - ours).union(*(needed(extra) for one in ours for extra in one.extras))


@pytest.mark.parametrize("file", LOCKS)
def test_a_lock_file_has_every_dependency_with_hashes(file: str) -> None:
    """If a dependency in pyproject.toml has changed, run `.ci/lock`."""
    text = (ROOT / file).read_text(encoding="utf-8")
    lines = re.findall(r"^[\w.-]+(?:\[.*\])?==[^\s;]+", text, re.MULTILINE)
    locked = {item.name: item for item in map(Requirement, lines)}
    wanted = {Requirement(item) for item in PROJECT["dependencies"]}.union(*map(needed, LOCKS[file]))

    assert {item.name for item in wanted} - {*locked} == set()
    for item in wanted:
        (version,) = locked[item.name].specifier
        assert item.specifier.contains(version.version), item
        # Without its extras, a line does not pin them, and pip would install any version without a hash.
        assert item.extras <= locked[item.name].extras, item
    assert text.count("==") <= text.count("--hash=sha256:")


def test_a_lock_file_names_no_address() -> None:
    for file in (*LOCKS, ".ci/release.txt"):
        assert "://" not in (ROOT / file).read_text(encoding="utf-8"), file


def test_a_release_is_published_without_a_password() -> None:
    """The workflow itself cannot run in a test."""
    text = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]

    assert (jobs["publish"]["permissions"], jobs["publish"]["needs"]) == ({"id-token": "write"}, "build")
    assert "secrets." not in text
    assert {"run": "bash .ci/release dist"} in jobs["build"]["steps"]
    assert (ROOT / ".ci/release").exists()
