"""Network settings for the connection to the service: the proxy, the certificates, and your own headers."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from attrs import field, frozen

from transfer_async._http.request import checked_headers
from transfer_async._http.urls import proxy_and_authorization


@frozen
class NetworkSettings:
    """Network settings in text form, for commands and for `TransferClient.from_env`.

    Args:
        proxy: the URL of an HTTP proxy.
        ca: a PEM file with the certificates to trust instead of the system's.
        client_cert: a PEM file with the client's certificate, and optionally its private key.
        client_key: a PEM file with the private key of ``client_cert``.
        headers: a text file with one header per line, for example ``X-Gateway-Key: 7f3a``.
    """

    proxy: str | None = field(default=None, repr=False)
    ca: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    headers: str | None = None

    @classmethod
    def from_env(cls) -> NetworkSettings:
        """Return the settings from the environment. An empty variable counts as unset."""
        return cls(**{name: os.environ.get(variable) or None for name, variable in VARIABLES.items()})

    def client_settings(self, names: Mapping[str, str]) -> dict[str, Any]:
        """Return these settings as arguments of `TransferClient`: ``proxy``, ``ssl`` and ``headers``, if set.

        ``names`` maps each setting to its option or environment variable; error messages start with that
        name. Error messages never contain a password or a header's value.
        """
        problem = self._proxy_problem()
        if problem is not None:
            raise ValueError(f"{names['proxy']}:{problem}")
        found: dict[str, Any] = {} if self.proxy is None else {"proxy": self.proxy}
        if self.ca or self.client_cert or self.client_key:
            found["ssl"] = self._context(names)
        if self.headers is not None:
            found["headers"] = _headers_in(self.headers, names["headers"])
        return found

    def _proxy_problem(self) -> str | None:
        try:
            proxy_and_authorization(self.proxy)
        except ValueError as error:
            return str(error).partition(":")[2]
        return None

    def _context(self, names: Mapping[str, str]) -> ssl.SSLContext:
        if self.client_cert is None and self.client_key is not None:
            raise ValueError(f"{names['client_key']}: can be used only with {names['client_cert']}")
        doing = names["ca"]
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.client_cert is not None:
                doing = ", ".join(names[key] for key in ("client_cert", "client_key") if getattr(self, key))
                # If no password were passed, OpenSSL would prompt for one on the terminal.
                context.load_cert_chain(self.client_cert, self.client_key, password="")
        except OSError as error:
            why = error.strerror or str(error)
            raise ValueError(f"{doing}: cannot be used ({why}); it must be a readable PEM file") from None
        return context


def _headers_in(path: str, setting: str) -> dict[str, str]:
    """Read the headers from the file ``path``. Error messages start with ``setting``."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "the file is not UTF-8"
        raise ValueError(f"{setting}: cannot be read ({why}); it must be a text file of headers") from None
    headers: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, colon, value = (part.strip() for part in line.partition(":"))
        if name in headers or (line.strip() and not colon):
            why = "the header occurs twice" if colon else "must be a name, a colon and a value"
            raise ValueError(f"{setting}: line {number}: {why}")
        if line.strip():
            headers[name] = value
    try:
        return checked_headers(headers, request_id_header=None)
    except ValueError as error:
        why = str(error).partition(":")[2]
    raise ValueError(f"{setting}:{why}")


VARIABLES = {item.name: f"TRANSFER_{item.name.upper()}" for item in attrs.fields(NetworkSettings)}
"""The environment variable of each setting."""
