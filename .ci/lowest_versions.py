"""Print pip constraints: the lowest allowed version of each dependency of the package and its extras."""

import re
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = project["optional-dependencies"].values()
for line in [*project["dependencies"], *(line for extra in extras for line in extra)]:
    if found := re.match(r"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)((?:; *.+)?)$", line):
        print(f"{found[1]}=={found[2]}{found[3]}")
    elif not line.startswith("transfer_async["):
        raise SystemExit(f"pyproject.toml: {line!r} has no lowest version")
