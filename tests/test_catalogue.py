"""The list of all messages of the package, `catalogue.txt`, which can be read and compared.

After a change of a message or a help text, run ``python -m tests.test_catalogue`` to update the file.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import typer

import transfer_async
from transfer_async._cli.app import app

PACKAGE = Path(transfer_async.__file__).parent
CATALOGUE = Path(__file__).with_name("catalogue.txt")
UPDATE = "python -m tests.test_catalogue"

AVOIDED = re.compile(
    r"\b(whoever|of which|hears|told|is to be had|goes again|comes again|laid aside|mend|a wrong use"
    r"|nobody can be asked|for whom|as it was written|was not to be|something true)\b",
    re.IGNORECASE,
)
"""Expressions that messages must not contain, because they confuse readers."""

VALUE = re.compile(r"\{[^}]*\}")
"""The placeholder for a value in an f-string."""

NOT_ENGLISH = re.compile(
    r"^\s*([A-Z]+ [A-Z]+|SELECT|INSERT|UPDATE|DELETE|WITH|PRAGMA|BEGIN|SET|AND|<)\b|^\s*(<|-- )|://\S+$"
)
"""Matches SQL, markup and addresses."""


def text_of(node: ast.AST) -> str | None:
    """Return the text of a string literal; ``{name}`` stands for a value in an f-string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [text_of(part) or f"{{{ast.unparse(part.value)}}}" for part in node.values]  # type: ignore[attr-defined] # other parts are values
        return "".join(parts)
    return None


def literals(node: ast.AST) -> Iterator[str]:
    """Yield the string literals below ``node``, without docstrings and type annotations."""
    for name, field in ast.iter_fields(node):
        for child in field if isinstance(field, list) else [field]:
            is_docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            if not isinstance(child, ast.AST) or is_docstring or name in ("annotation", "returns"):
                continue
            text = text_of(child)
            if text is None:
                yield from literals(child)
            else:
                yield text


def is_message(text: str) -> bool:
    """Return whether ``text`` is English, that is, has two words in a row outside of values."""
    prose = VALUE.sub("", text)
    return (
        bool(re.search(r"[a-z]{2,}[,:;]? [a-z]{2,}", prose))
        and prose.isprintable()
        and not NOT_ENGLISH.search(text)
    )


def helps(command: click.Command, path: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the help of a command, of its options and of its subcommands."""
    if hasattr(command, "commands"):
        for name, one in sorted(command.commands.items()):
            yield from helps(one, f"{path} {name}")
    else:
        options = [f"{one.opts[0]}: {one.help}" for one in command.params if getattr(one, "help", None)]
        yield path, [*paragraphs(command.help or ""), *options]


def paragraphs(text: str) -> Iterator[str]:
    """Yield each paragraph of a help text as one line, and each line of a paragraph that is not wrapped."""
    for paragraph in text.split("\n\n"):
        _, is_preformatted, lines = paragraph.rpartition("\b\n")
        yield from lines.splitlines() if is_preformatted else [" ".join(paragraph.split())]


@cache
def catalogue() -> str:
    """Return all messages by module, then the help texts by command."""
    sections = dict(helps(typer.main.get_command(app), "transfer-async"))
    for path in sorted(PACKAGE.rglob("*.py")):
        found = {" ".join(text.split()) for text in literals(ast.parse(path.read_text("utf-8")))}
        if messages := sorted(filter(is_message, found)):
            sections[str(path.relative_to(PACKAGE.parent))] = messages
    return "\n".join(
        f"# {name}\n" + "".join(f"{line}\n" for line in lines) for name, lines in sections.items()
    )


def test_the_catalogue_has_the_messages_of_the_source():
    assert CATALOGUE.read_text("utf-8") == catalogue(), f"run {UPDATE} to update it"


def test_no_message_has_an_expression_that_confuses_readers():
    found = [line for line in catalogue().splitlines() if AVOIDED.search(VALUE.sub("", line))]

    assert found == []


if __name__ == "__main__":
    CATALOGUE.write_text(catalogue(), "utf-8")
