"""The templates, and what they may use: whatever comes into them is escaped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined

from transfer_async.desk import words

_FOLDER = Path(__file__).with_name("templates")


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


# Read once, on import: they are files, and requests are answered within a loop.
STYLE = _read("desk.css")
ICON = _read("icon.svg")

_environment = Environment(
    loader=DictLoader({name: _read(name) for name in ("base.html", "list.html", "key.html", "message.html")}),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters.update(
    age=words.age, count=words.count, machine_time=words.machine_time, move=words.move, time=words.time
)
_environment.globals.update(money=words.money, kinds=words.KINDS, kinds_explained=words.KINDS_EXPLAINED)
_TEMPLATES = {name: _environment.get_template(f"{name}.html") for name in ("list", "key", "message")}


def page(template: str, **given: Any) -> str:
    """A page of HTML.

    Args:
        template: ``list``, ``key`` or ``message``.
        given: what it shows.
    """
    return _TEMPLATES[template].render(given)
