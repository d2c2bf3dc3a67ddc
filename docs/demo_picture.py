"""Create `demo.svg`, a picture of the demo's output: `python docs/demo_picture.py`."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

PICTURE = Path(__file__).with_name("demo.svg")
WIDTH = 98
PARTS = ("2.", "3.", "4.", "5.")  # the parts of the demo to show; the whole demo would be too long for a page

_FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-family: sans-serif; font-size: 18px; font-weight: bold; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""  # the format of rich, without fonts from the network


def shown() -> list[str]:
    """Return the lines of the demo to show, without their times, which differ in each run."""
    command = [sys.executable, "-m", "transfer_async", "demo"]
    told = subprocess.run(command, capture_output=True, encoding="utf-8", check=True, timeout=60).stdout
    lines, inside = ["$ transfer-async demo", ""], False
    for line in told.splitlines():
        if re.match(r"\d\. ", line):
            inside = line.startswith(PARTS)
        if inside:
            timeless = re.sub(r"^ +[\d.]+ s  ", "  ", line)
            lines += textwrap.wrap(
                timeless, WIDTH - 1, subsequent_indent=" " * 22, drop_whitespace=False
            ) or [""]
    return [*lines, "…", told.splitlines()[-1]]


def picture(lines: list[str]) -> str:
    """Return ``lines`` as an SVG of a terminal."""
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    for line in lines:
        text = Text(line)
        if re.match(r"\d\. |\$ |demo ok", line):
            text.stylize("bold")
        text.highlight_regex(r"^  checked", "cyan")
        text.highlight_regex(r"hold-\d (?:was )?\w+|is kept|is released", "yellow")
        text.highlight_regex(r"created: tx-\w+|created, tx-\w+|returns tx-\w+", "green")
        text.highlight_regex(r"in doubt|unknown \(\w+\)|refused: there is no order", "magenta")
        console.print(text, highlight=False)
    return console.export_svg(title="", theme=MONOKAI, code_format=_FORMAT, unique_id="demo")


if __name__ == "__main__":
    PICTURE.write_text(picture(shown()), encoding="utf-8")
