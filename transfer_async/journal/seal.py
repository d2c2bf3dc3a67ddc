"""What the journal stores of persons, sealed: whoever has the file, a backup or the database reads no name.

Sealed are an order, its beneficiary and the service's reply, each bound to the intent or the order that it
belongs to: a sealed text that is put beside another key does not open.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from transfer_async._support.callables import refuse_class

MARK = "sealed:1:"
"""What every sealed text begins with: no JSON does."""

_KEY_BYTES = 32
_NONCE_BYTES = 12


class DoesNotOpen(Exception):
    """A sealed text does not open; the text says why, and never what is in it."""


class Seal(Protocol):
    """Seals what is stored, and opens it again; a bank's own may ask its key management."""

    def sealed(self, data: bytes, *, owner: str) -> str:
        """``data`` as a text that begins with `MARK`; ``owner`` is needed to open it."""
        ...

    def opened(self, text: str, *, owner: str) -> bytes:
        """What was sealed.

        Raises:
            DoesNotOpen: it is of another key or another owner, or was changed.
        """
        ...


class KeySeal:
    """AES-256-GCM under one of several keys; needs ``pip install '.[seal]'``.

    Args:
        keys: 32 bytes each, by an id of 1 to 32 letters, digits, ``.``, ``_`` or ``-``. The id is stored
            beside what is sealed: a key stays here as long as anything is sealed with it.
        current: the id of the key that seals from now on; all of them open.

    Raises:
        ValueError: names the argument and the rule; never shows a key.
    """

    def __init__(self, keys: Mapping[str, bytes], *, current: str) -> None:
        for name, key in keys.items():
            if not re.fullmatch(r"[\w.-]{1,32}", name, re.ASCII):
                raise ValueError("keys: an id has 1 to 32 letters, digits, '.', '_' or '-'")
            if not isinstance(key, bytes) or len(key) != _KEY_BYTES:
                raise ValueError(f"keys: the key '{name}' must be {_KEY_BYTES} bytes")
        if current not in keys:
            raise ValueError("current: must be the id of one of the keys")
        make, self._broken = _aes_gcm()
        self._ciphers = {name: make(key) for name, key in keys.items()}
        self._current = current

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> KeySeal:
        """The keys of a JSON file: ``{"current": "2026", "keys": {"2026": "<32 bytes in base64>"}}``.

        Raises:
            ValueError: it cannot be read, or is not of that form; never shows what is in it.
        """
        try:
            read = json.loads(Path(path).read_bytes())
            keys = {name: base64.b64decode(text, validate=True) for name, text in read["keys"].items()}
            current = read["current"]
        except OSError as error:
            raise ValueError(f"the file of keys cannot be read ({error.strerror or error})") from None
        except (ValueError, TypeError, KeyError, AttributeError):
            why = """the file of keys must be {"current": "ID", "keys": {"ID": "32 bytes in base64"}}"""
            raise ValueError(why) from None
        return cls(keys, current=current)

    def sealed(self, data: bytes, *, owner: str) -> str:
        """See `Seal.sealed`."""
        nonce = os.urandom(_NONCE_BYTES)
        hidden = self._ciphers[self._current].encrypt(nonce, data, owner.encode())
        return f"{MARK}{self._current}:{base64.b64encode(nonce + hidden).decode()}"

    def opened(self, text: str, *, owner: str) -> bytes:
        """See `Seal.opened`."""
        name, _, encoded = text.removeprefix(MARK).partition(":")
        cipher = self._ciphers.get(name)
        if cipher is None:
            shown = name if re.fullmatch(r"[\w.-]{1,32}", name, re.ASCII) else "?"
            raise DoesNotOpen(f"sealed with the key '{shown}', which is not among these")
        try:
            raw = base64.b64decode(encoded, validate=True)
            data: bytes = cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], owner.encode())
        except (self._broken, binascii.Error, ValueError):
            raise DoesNotOpen(f"the key '{name}' does not open it: another key, or it was changed") from None
        return data


def checked_seal(given: object) -> Seal | None:
    """``given``, if it is a seal, or nothing.

    Raises:
        ValueError: it is something else.
    """
    refuse_class(given, name="seal")
    if given is not None and not (callable(getattr(given, "sealed", None)) and hasattr(given, "opened")):
        raise ValueError("seal: must have the methods of Seal, as KeySeal has")
    return cast("Seal | None", given)


def opened(seal: Seal | None, text: str, *, owner: str) -> bytes:
    """What was sealed.

    Raises:
        DoesNotOpen: it does not, or there is no seal.
    """
    if seal is None:
        raise DoesNotOpen("sealed, and this journal has no seal")
    return seal.opened(text, owner=owner)


def sealed_reply(seal: Seal, reply: bytes, order_id: str | None) -> bytes:
    """The service's reply, bound to the order that it is about."""
    return seal.sealed(reply, owner=order_id or "").encode()


def opened_reply(seal: Seal | None, reply: bytes | None, order_id: str | None) -> bytes | None:
    """A reply that may have been sealed.

    Raises:
        DoesNotOpen: see `opened`.
    """
    if reply is None or not reply.startswith(MARK.encode()):
        return reply
    return opened(seal, reply.decode(errors="replace"), owner=order_id or "")


def _aes_gcm() -> tuple[Callable[[bytes], Any], type[Exception]]:
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise ValueError("a KeySeal needs cryptography: pip install 'transfer_async[seal]'") from error
    return AESGCM, InvalidTag
