"""Checks of the URLs that the client uses: the base URL, the paths below it, the proxy, and origins."""

from __future__ import annotations

import base64
import ipaddress
import re
from urllib.parse import unquote

from yarl import URL

CREATE_ORDER = "/api/api/v1/order/create"
WHO_AM_I = "/api/api/v1/user/who-am-i"

_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[0-9a-z._:%-]+")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PLAIN_PATH = re.compile(r"/[!-~]*")  # printable ASCII, no spaces
_PARAMETERS = re.compile(r";[^/]*")
_BEHIND = re.compile(r"[?#].*")


def normalised(base_url: str) -> str:
    """Return ``base_url`` in normalised form: in lower case, without a default port or a trailing slash."""
    if isinstance(base_url, str) and (not base_url.isprintable() or " " in base_url):
        raise ValueError("base_url: must not contain spaces or control characters")
    url = _url(base_url)
    if url is None:
        raise ValueError("base_url: is not a URL")
    host, port = url.raw_host, url.explicit_port
    if url.scheme not in ("https", "http") or not host or not _HOST.fullmatch(host):
        raise ValueError("base_url: is not an https address")
    if url.scheme == "http" and not _is_loopback(host.removesuffix(".")):
        raise ValueError("base_url: must be https, unless the host is a loopback address")
    # A "/" in a password ends the host, so only the "@" shows that there is a password.
    if url.user is not None or url.password is not None or "@" in base_url:
        raise ValueError("base_url: must not contain a user or a password")
    if url.query_string or url.fragment:
        raise ValueError("base_url: must not contain a query or a fragment")
    if ".." in host or host == "." or is_odd_host(host.removesuffix(".")):
        raise ValueError("base_url: is not an https address")
    if host.endswith("."):  # The final dot of a host name has no effect.
        url = url.with_host(host.removesuffix("."))
    if port == _DEFAULT_PORTS[url.scheme]:
        url = url.with_port(None)
    _refuse_second_spelling(url.raw_path.rstrip("/"))
    return str(url).rstrip("/")


def is_odd_host(host: str) -> bool:
    """Return whether ``host`` is an unusual form of an IPv4 address, such as 127.1 or 0x7f000001."""
    if ":" in host:
        return False  # `yarl` normalises IPv6 addresses.
    if "%" in host:
        return True
    if not _NUMBER.fullmatch(host.rpartition(".")[2]):
        return False
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return True
    return False


def _refuse_second_spelling(path: str) -> None:
    """Reject a path prefix that a server may treat as equal to another prefix.

    Without this check, each spelling of a service's prefix would have its own set of keys. The prefix is
    rejected instead of rewritten, because a rewritten prefix would change the requests.
    """
    for stage in _stages(path, "base_url"):
        segments = stage.split("/")[1:]
        if "" in segments or "." in segments or ".." in segments or "\\" in stage:
            raise ValueError(
                "base_url: must not contain an empty path segment ('//'), a dot segment or a backslash, "
                "encoded or not; remove it. If the journal has keys under the old base_url, pass the old "
                "base_url as scope="
            )


def _url(text: object) -> URL | None:
    """Return ``text`` as a URL, or None if it is not one. Error messages never contain ``text``."""
    try:
        url = URL(text)  # type: ignore[arg-type] # any object may be given
        _ = url.raw_host, url.explicit_port
    except (TypeError, ValueError, IndexError):  # yarl raises IndexError for brackets without a host.
        return None
    return url


def proxy_and_authorization(proxy: object) -> tuple[str | None, str | None]:
    """Split a proxy's URL into the URL without the user and password, and a header value with both.

    aiohttp includes the URL in its errors and logs, so the URL must not contain credentials. This function's
    own errors contain no part of the URL.
    """
    if proxy is None:
        return None, None
    url = _url(proxy) if isinstance(proxy, str) and proxy.isprintable() and " " not in proxy else None
    if url is None or url.scheme not in ("http", "https") or not url.raw_host:
        raise ValueError("proxy: must be an address such as http://user:password@host:port, percent-encoded")
    if url.raw_path not in ("", "/") or url.raw_query_string or url.raw_fragment:
        raise ValueError(
            "proxy: must not contain a path; are the password's special characters percent-encoded?"
        )
    clean = str(url.with_user(None))
    if url.user is None and url.password is None:
        return clean, None
    said = base64.b64encode(f"{url.user or ''}:{url.password or ''}".encode())
    return clean, f"Basic {said.decode()}"


def checked_path(path: str, *, below: str = "") -> str:
    """Return ``path`` after checking that it stays below the base URL, and is not the create-order path."""
    if not isinstance(path, str) or not _PLAIN_PATH.fullmatch(path) or "#" in path or "\\" in path:
        raise ValueError("path: must begin with one '/' and be percent-encoded ASCII without '#'")
    stages = _stages(path.partition("?")[0])
    plain = stages[-1]
    if path.startswith("//") or plain.startswith("//") or "\\" in plain:
        raise ValueError("path: must not name a host")
    if not plain.isprintable():
        raise ValueError("path: must not contain control characters, encoded or not")
    segments = [segment.partition(";")[0].strip() for segment in plain.split("/")]
    if "." in segments or ".." in segments:
        raise ValueError("path: must not contain dot segments")
    prefix = URL(below).path if below else ""
    if any(_bare(start + stage).endswith(CREATE_ORDER) for stage in stages for start in ("", prefix)):
        raise ValueError("path: to create orders, call create_order, which ensures at most one order per key")
    return path


def _stages(path: str, name: str = "path") -> list[str]:
    """Return ``path`` and the result of each further percent-decoding, until decoding changes nothing."""
    stages = [path]
    for _ in range(10):  # Proxies may decode a path once more than expected.
        further = unquote(stages[-1])
        if further == stages[-1]:
            return stages
        stages.append(further)
    raise ValueError(f"{name}: is percent-encoded too many times")


def _bare(path: str) -> str:
    """Return ``path`` as the most lenient server would read it: decoded, without parameters or query."""
    path, before = _PARAMETERS.sub("", _BEHIND.sub("", path)), path
    while path != before:
        path, before = _PARAMETERS.sub("", _BEHIND.sub("", unquote(path))), path
    return "/".join(["", *filter(None, map(str.strip, path.split("/")))]).casefold()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


_ORIGIN = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9a-f:]+\]|[^\s/?#@\\%:\[\]]+)(:(?P<port>[0-9]{1,9}))?", re.IGNORECASE
)
_HOST_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?")


def checked_origin(origin: str | None) -> str | None:
    """Return ``origin`` in the form that browsers send; None stays None."""
    if origin is None:
        return None
    given = _ORIGIN.fullmatch(origin) if isinstance(origin, str) else None
    found = None if given is None else _as_sent(given["scheme"].lower(), given["host"], given["port"])
    if found is None:
        raise ValueError("origin: must be scheme and host, as in https://desk.bank.example")
    return found


def _as_sent(scheme: str, host: str, port: str | None) -> str | None:
    """Return the origin as browsers send it, with an IDNA host and no default port; None if it is invalid."""
    number = int(port) if port else _DEFAULT_PORTS[scheme]
    try:
        name = URL.build(scheme=scheme, host=host.strip("[]"), port=number).raw_host or ""
    except ValueError:
        return None
    if ":" in name:
        name = f"[{name}]"
    elif not _HOST_NAME.fullmatch(name) or is_odd_host(name.removesuffix(".")):
        return None
    return f"{scheme}://{name}" + ("" if number == _DEFAULT_PORTS[scheme] else f":{number}")
