"""Addresses: read from options, and shown without their secrets."""

from __future__ import annotations

from transfer_async._support.addresses import public

__all__ = ["host_and_port", "public"]


def host_and_port(text: str) -> tuple[str, int]:
    """``HOST:PORT`` in its parts.

    Raises:
        ValueError: it is not that.
    """
    host, _, port = text.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError("--health: must be HOST:PORT, as in 127.0.0.1:8080")
    return host.strip("[]"), int(port)
