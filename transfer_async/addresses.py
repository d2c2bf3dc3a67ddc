"""Where requests may go: the base address, and the paths below it."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import unquote

from yarl import URL

CREATE_ORDER = "/api/api/v1/order/create"
WHO_AM_I = "/api/api/v1/user/who-am-i"

_HOST = re.compile(r"[0-9a-z._:%-]+")
_PLAIN_PATH = re.compile(r"/[!-~]*")  # printable ASCII, no spaces
_PARAMETERS = re.compile(r";[^/]*")
_BEHIND = re.compile(r"[?#].*")


def normalised(base_url: str) -> str:
    """``base_url`` in the one form that names its service: lower case, nothing that may be left out.

    Raises:
        ValueError: it is not https (or http to this machine), or carries more than host, port and path.
    """
    if isinstance(base_url, str) and (not base_url.isprintable() or " " in base_url):
        raise ValueError("base_url: must not hold spaces or control characters")
    try:
        url = URL(base_url)
        host, port = url.raw_host, url.explicit_port
    except (TypeError, ValueError):
        raise ValueError("base_url: is not a URL") from None
    if url.scheme not in ("https", "http") or not host or not _HOST.fullmatch(host):
        raise ValueError("base_url: is not an https address")
    if url.scheme == "http" and not _is_loopback(host.removesuffix(".")):
        raise ValueError("base_url: must be https, unless the host is this machine's loopback")
    if url.user is not None or url.password is not None:
        raise ValueError("base_url: must not carry a user or a password")
    if url.query_string or url.fragment:
        raise ValueError("base_url: must not carry a query or a fragment")
    if ".." in host or host == ".":
        raise ValueError("base_url: is not an https address")
    if host.endswith("."):  # the root of all names, which none needs to say
        url = url.with_host(host.removesuffix("."))
    if port == {"https": 443, "http": 80}[url.scheme]:
        url = url.with_port(None)
    return str(url).rstrip("/")


def checked_path(path: str, *, below: str = "") -> str:
    """``path`` as given, if it is safe to append to the base address ``below`` which it lies.

    Raises:
        ValueError: it is not absolute below the base address, or is the create-order path in any disguise.
    """
    if not isinstance(path, str) or not _PLAIN_PATH.fullmatch(path) or "#" in path or "\\" in path:
        raise ValueError("path: must begin with one '/' and be percent-encoded ASCII without '#'")
    stages = _stages(path.partition("?")[0])
    plain = stages[-1]
    if path.startswith("//") or plain.startswith("//") or "\\" in plain:
        raise ValueError("path: must not name a host")
    if not plain.isprintable():
        raise ValueError("path: must not hold control characters, encoded or not")
    segments = [segment.partition(";")[0].strip() for segment in plain.split("/")]
    if "." in segments or ".." in segments:
        raise ValueError("path: must not hold dot segments")
    prefix = URL(below).path if below else ""
    if any(_bare(start + stage).endswith(CREATE_ORDER) for stage in stages for start in ("", prefix)):
        raise ValueError("path: orders are created by create_order alone, which keeps one key to one order")
    return path


def _stages(path: str) -> list[str]:
    """``path``, then decoded once, twice, and so on until there is nothing left to decode."""
    stages = [path]
    for _ in range(10):  # however often it was encoded; a proxy on the way may decode once more than we think
        further = unquote(stages[-1])
        if further == stages[-1]:
            return stages
        stages.append(further)
    raise ValueError("path: is percent-encoded too many times")


def _bare(path: str) -> str:
    """``path`` as the most lenient of servers would take it: parameters dropped, from this stage on."""
    path, before = _PARAMETERS.sub("", _BEHIND.sub("", path)), path
    while path != before:
        path, before = _PARAMETERS.sub("", _BEHIND.sub("", unquote(path))), path
    return "/".join(["", *filter(None, map(str.strip, path.split("/")))]).casefold()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
