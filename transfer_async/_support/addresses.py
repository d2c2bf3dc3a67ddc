"""Addresses as they may be told: without a name, a password or other secrets."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_ENCODED = r"(?:[^@/?#%\s\[\]\\]|%[0-9A-Fa-f]{2})*"
_SERVER = r"(?:\[[0-9A-Fa-f:.%\w]+\]|[\w.%-]*)(?::[0-9]{1,5})?"
_DATABASE = re.compile(
    rf"postgres(?:ql)?://(?:{_ENCODED}@)?{_SERVER}(?:,{_SERVER})*(?:/{_ENCODED})?"
    r"(?:\?(?!(?:.*&)?port=(?![0-9,]+(?:&|$)))(?:[\w.-]+=[^&@#\s]*(?:&|$))*)?"
)


def checked_database(dsn: str) -> str:
    """``dsn``, if it is the address of a PostgreSQL database of which every part is where it seems to be.

    A driver would take the rest of a password with a ``/`` or an ``@`` for a port or a host, show it in
    its errors, and ask the name service for it.

    Raises:
        ValueError: it is not; the message does not show it.
    """
    if not isinstance(dsn, str) or not dsn.startswith(("postgresql://", "postgres://")):
        raise ValueError("dsn: must begin with postgresql://")
    if not _DATABASE.fullmatch(dsn):
        raise ValueError(
            "dsn: must be postgresql://user:password@host:port/database, "
            "with the password's special characters percent-encoded ('/' is %2F, '@' is %40)"
        )
    return dsn


def public(address: str) -> str:
    """``address``, or several with commas between them, without a name, a password or other secrets."""
    if not _SCHEME.match(address.strip()):
        return "..." if _LIKE_A_LOGIN.search(address) else address  # a file
    first, *others = (one.strip() for one in address.split(","))
    # Of several, only the first need say how it is spoken to.
    return ",".join(
        [
            _public(first),
            *(_public(one if _SCHEME.match(one) else f"//{one}").removeprefix("//") for one in others),
        ]
    )


def _public(address: str) -> str:
    scheme = address.partition("//")[0]
    try:
        parts = urlsplit(address)
    except ValueError:
        return f"{scheme}//..."
    where = parts.netloc.rpartition("@")[2]
    shown = f"{where}{parts.path}"
    if "@" in f"{shown}{parts.query}{parts.fragment}" or not _SERVER_AND_PORT.fullmatch(where):
        shown = "..."  # a password with characters that should have been escaped
    return f"{scheme}//{shown}"


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_LIKE_A_LOGIN = re.compile(r":.*@|\bpass\w*\s*=|\bpwd\s*=", re.DOTALL | re.IGNORECASE)
_SERVER_AND_PORT = re.compile(r"([^:\[\]]*|\[.*\])(:[0-9]*)?")
