"""The lowest versions that pyproject.toml admits of what the package and its extras need, as constraints."""

import re
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = project["optional-dependencies"].values()
for line in [*project["dependencies"], *(line for extra in extras for line in extra)]:
    if found := re.match(r"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)((?:; *.+)?)$", line):
        print(f"{found[1]}=={found[2]}{found[3]}")
    elif not line.startswith("transfer_async["):
        raise SystemExit(f"pyproject.toml: {line!r} names no lowest version")
