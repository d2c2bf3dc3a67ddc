"""The page of the command line: its commands, options and exit codes, generated from the program."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from inspect import cleandoc
from typing import Any

import typer
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

from transfer_async._cli import process
from transfer_async._cli.app import app

PROGRAM = "transfer-async"
_LITERAL = re.compile(r"`([^`]+)`|(?<![\w-])(--?[a-z][\w-]*(?:=\S*\w)?|[A-Z]{3,}_[A-Z_]+)\b")


def all_commands() -> Iterator[tuple[str, Any]]:
    """Yield the full name of each command and group of commands, in alphabetical order."""

    def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        yield name, command
        for part, inner in sorted(getattr(command, "commands", {}).items()):
            yield from walk(f"{name} {part}", inner)

    return walk(PROGRAM, typer.main.get_command(app))


def options_of(command: Any) -> Iterator[tuple[str, str, str, str]]:
    """Yield each option as it is typed, its default, its environment variable, and its help."""
    context = typer.Context(command)
    for parameter in command.get_params(context):
        if parameter.name != "help" and not parameter.hidden:
            typed = re.sub(r"^\[(.*)\]$", r"\1", parameter.get_help_record(context)[0])
            yield typed, default_of(parameter), str(parameter.envvar or ""), parameter.help or ""


def default_of(parameter: Any) -> str:
    """Return the option's default as text, "required" if it is required, or an empty string."""
    value = parameter.default
    if parameter.required:
        return "required"
    if value is None or value is False or value in ((), [], "") or callable(value):
        return ""
    return f"{value:g}" if isinstance(value, float) else str(getattr(value, "value", value))


def exit_code_rows() -> list[tuple[str, str]]:
    """Return each exit code with its meaning; codes that share a docstring share a row."""
    codes: dict[str, list[int]] = {}
    for (_, name), lines in ModuleAnalyzer.for_module(process.__name__).find_attr_docs().items():
        if name.isupper() and name[0] != "_" and isinstance(code := getattr(process, name), int):
            codes.setdefault(" ".join(lines).strip(), []).append(code)
    return [(", ".join(map(str, sorted(codes[meaning]))), meaning) for meaning in codes]


class Commands(SphinxDirective):
    """``{commands}``: a section for each command."""

    def run(self) -> list[nodes.Node]:
        """Build the sections from the program's own help."""
        return [self._section(name, command) for name, command in all_commands()]

    def _section(self, name: str, command: Any) -> nodes.section:
        section = nodes.section(ids=[nodes.make_id(name)], names=[nodes.fully_normalize_name(name)])
        section += nodes.title(name, name)
        self.state.document.note_implicit_target(section)
        pieces = " ".join(command.collect_usage_pieces(typer.Context(command)))
        section += _literal_block(f"{name} {pieces}".rstrip())
        section += list(_paragraphs(command.help or ""))
        if rows := list(options_of(command)):
            section += _table(("option", "default", "variable", "meaning"), rows, (0, 1, 2))
        return section


class ExitCodes(SphinxDirective):
    """``{exit-codes}``: the table of exit codes."""

    def run(self) -> list[nodes.Node]:
        """Build the table from the module of exit codes."""
        return [_table(("code", "meaning"), exit_code_rows(), (0,))]


def _paragraphs(text: str) -> Iterator[nodes.Node]:
    """Yield the paragraphs of a help text; a paragraph that begins with ``\\b`` keeps its line breaks."""
    for part in re.split(r"\n\s*\n", cleandoc(text)):
        if part.startswith("\b"):
            yield _literal_block(part.removeprefix("\b").strip("\n"))
        else:
            yield nodes.paragraph("", "", *_inline(" ".join(part.split())))


def _inline(text: str) -> Iterator[nodes.Node]:
    """Yield the text with options and variables as code, because "--" in plain text would become a dash."""
    for number, part in enumerate(_LITERAL.split(text)):
        if part:
            yield nodes.literal(part, part) if number % 3 else nodes.Text(part)


def _literal_block(text: str) -> nodes.literal_block:
    return nodes.literal_block(text, text, language="text")


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]], literal: tuple[int, ...]) -> nodes.table:
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in head), cols=len(head))
    group += nodes.thead("", _row([[nodes.Text(name)] for name in head]))
    group += nodes.tbody(
        "",
        *(
            _row(
                [
                    [nodes.literal(cell, cell)] if cell and number in literal else list(_inline(cell))
                    for number, cell in enumerate(row)
                ]
            )
            for row in rows
        ),
    )
    return nodes.table("", group, classes=["docutils", "align-default"])


def _row(cells: list[list[nodes.Node]]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *cell)) for cell in cells))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("commands", Commands)
    app.add_directive("exit-codes", ExitCodes)
    return {"parallel_read_safe": True}
