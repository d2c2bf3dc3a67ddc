"""Addresses: read from options, and shown without their secrets."""

from __future__ import annotations

import re
from urllib.parse import urlsplit


def host_and_port(text: str) -> tuple[str, int]:
    """``HOST:PORT`` in its parts.

    Raises:
        ValueError: it is not that.
    """
    host, _, port = text.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError("--health: must be HOST:PORT, as in 127.0.0.1:8080")
    return host.strip("[]"), int(port)


def public(address: str) -> str:
    """``address``, or several with commas between them, without a name, a password or other secrets."""
    if "://" not in address:
        return address  # a file
    first, *others = (one.strip() for one in address.split(","))
    # Of several, only the first need say how it is spoken to.
    return ",".join(
        [
            _public(first),
            *(_public(f"//{one}" if "://" not in one else one).removeprefix("//") for one in others),
        ]
    )


def _public(address: str) -> str:
    parts = urlsplit(address)
    where = parts.netloc.rpartition("@")[2]
    shown = f"{where}{parts.path}"
    if "@" in f"{shown}{parts.query}{parts.fragment}" or not _HOST.fullmatch(where):
        shown = "..."  # a password with characters that should have been escaped
    return f"{parts.scheme}{':' if parts.scheme else ''}//{shown}"


_HOST = re.compile(r"([^:\[\]]*|\[.*\])(:[0-9]*)?")
