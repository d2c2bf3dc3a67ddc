"""The documents for banks refer only to existing files and tests, supported versions and the licence."""

import re
import tomllib
from pathlib import Path

import yaml

from tests.support.cases import each

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PAPERS = sorted((ROOT / ".github").glob("*.md")) + sorted((ROOT / "docs/examples").rglob("README.md"))
TEMPLATES = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))


@each("paper", PAPERS)
def test_documents_refer_only_to_existing_files_and_tests(paper: Path) -> None:
    text = paper.read_text(encoding="utf-8")
    links = [paper.parent / link for link in re.findall(r"\]\(([^)#:]+)\)", text)]
    named = [ROOT / path for path in re.findall(r"\b(tests/[\w./]*\w)", text)]
    programs = [
        ROOT / path.replace(".", "/") / "__main__.py" for path in re.findall(r"-m (tests[\w.]+)", text)
    ]

    assert [str(path) for path in (*links, *named, *programs) if not path.exists()] == []


def test_the_licence_file_matches_the_package_metadata() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")

    assert (PROJECT["license"], PROJECT["license-files"]) == ("MIT", ["LICENSE"])
    assert text.startswith("MIT License\n")
    assert PROJECT["authors"][0]["name"] in text


def test_the_lowest_required_python_matches_the_classifiers() -> None:
    named = re.findall(r"Python :: 3\.(\d+)", "\n".join(PROJECT["classifiers"]))

    assert PROJECT["requires-python"] == f">=3.{min(map(int, named))}"


@each("template", TEMPLATES)
def test_issue_templates_are_valid(template: Path) -> None:
    form = yaml.safe_load(template.read_text(encoding="utf-8"))

    if template.name == "config.yml":
        assert form == {"blank_issues_enabled": False}
        return
    ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert form["name"]
    assert len(ids) == len(set(ids)) > 1
