"""How a command is told to be used: its arguments by their names alone, as in every manual page."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class PlainUsage(TyperCommand):
    """A command whose usage line says ``KEY``, where Typer would say ``{KEY}``."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What stands after the command's name."""
        return [piece.removeprefix("{").removesuffix("}") for piece in super().collect_usage_pieces(ctx)]
