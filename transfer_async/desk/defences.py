"""What stands between the page and whoever else is in the browser.

The cookie or the header that says who asks is sent whoever has made the form; so a change is believed only
from a page of the desk's own. And nobody else may frame a page, keep it, or run a script in it.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from aiohttp import web

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Not `no-referrer`: a browser would then hide the origin of the desk's own forms, too.
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "X-Robots-Tag": "noindex, nofollow",
}
"""Of every answer."""

READING = frozenset({"GET", "HEAD"})


def checked_origin(origin: str | None) -> str | None:
    """``origin`` as browsers write it.

    Raises:
        ValueError: it is none.
    """
    if origin is None:
        return None
    parts = urlsplit(origin if isinstance(origin, str) else "")
    is_one = parts.scheme in ("http", "https") and parts.hostname is not None
    if not is_one or f"{parts.scheme}://{parts.netloc}" != origin:
        raise ValueError("origin: must be scheme and host, as in https://desk.bank.example")
    return origin.lower()


def is_from_elsewhere(request: web.Request, *, origin: str | None) -> bool:
    """Whether ``request`` would change something and does not come, for certain, from a page of the desk.

    Args:
        request: any.
        origin: of the desk, where it is known; else that of the ``Host`` that was asked.
    """
    if request.method in READING:
        return False
    site = request.headers.getall("Sec-Fetch-Site", [])
    if site:  # a browser that says where the form was: no page can make it lie
        return site != ["same-origin"]
    given = request.headers.getall("Origin", [])
    if len(given) != 1:
        return True
    if origin is not None:
        return given[0].lower() != origin
    try:
        return urlsplit(given[0]).netloc.lower() != request.host.lower()
    except ValueError:
        return True
