"""Encryption of personal data in a journal, so that databases and backups do not reveal names.

The order, its beneficiary and the service's reply are encrypted. Each ciphertext is bound to the scope and
key of its record, and to the intent or the order. A ciphertext that is copied to another key cannot be
decrypted there.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

from transfer_async._models.errors import bare_alone, cause_of, hides_arguments, is_a, name_of, text_of
from transfer_async._support.util import ENDS_THE_PROGRAM, refuse_class

MARK = "sealed:1:"
"""The prefix of every ciphertext. No JSON text starts with it."""

_KEY_BYTES = 32
_NONCE_BYTES = 12


class DoesNotOpen(Exception):
    """Raised if a ciphertext cannot be decrypted. The message contains the reason, but no data."""


class SealFailed(Exception):
    """Raised if a seal returned a value of the wrong type, or raised an unexpected error (``__cause__``)."""


class Seal(Protocol):
    """Encrypts and decrypts stored personal data.

    Implement your own seal to use your key management system.
    """

    def sealed(self, data: bytes, *, owner: str) -> str:
        """Encrypt ``data``, and return a string that starts with `MARK`.

        The string can be decrypted only for the same ``owner``.
        """
        ...

    def opened(self, text: str, *, owner: str) -> bytes:
        """Decrypt a text.

        Raises:
            DoesNotOpen: the text was modified, or was encrypted with another key or for another owner.
        """
        ...


class KeySeal:
    """Encrypts with AES-256-GCM.

    New keys can be added without re-encrypting stored data. Requires ``pip install 'transfer_async[seal]'``.

    Args:
        keys: a mapping from ids to keys, which are 32 bytes long. An id consists of 1 to 32 letters, digits,
            ``.``, ``_`` or ``-``, and is stored with each ciphertext. Keep each key until no stored data is
            encrypted with it.
        current: the id of the key that encrypts new data. All keys can be used for decryption.

    Raises:
        ValueError: an argument is invalid; the message names the argument and the rule, but contains no key.
    """

    @hides_arguments
    def __init__(self, keys: Mapping[str, bytes], *, current: str) -> None:
        for name, key in keys.items():
            if not re.fullmatch(r"[\w.-]{1,32}", name, re.ASCII):
                raise ValueError("keys: an id must consist of 1 to 32 letters, digits, '.', '_' or '-'")
            if not isinstance(key, bytes) or len(key) != _KEY_BYTES:
                raise ValueError(f"keys: the key '{name}' must be {_KEY_BYTES} bytes")
        if current not in keys:
            raise ValueError("current: must be the id of one of the keys")
        make, self._broken = _aes_gcm()
        self._ciphers = {name: make(key) for name, key in keys.items()}
        self._current = current

    @classmethod
    @hides_arguments
    def from_file(cls, path: str | os.PathLike[str]) -> KeySeal:
        """Read the keys from a JSON file: ``{"current": "2026", "keys": {"2026": "<32 bytes in base64>"}}``.

        Raises:
            ValueError: the file cannot be read, or its format is wrong. The error message never contains the
                file's contents.
        """
        try:
            read = json.loads(Path(path).read_bytes())
            keys = {name: base64.b64decode(text, validate=True) for name, text in read["keys"].items()}
            current = read["current"]
        except OSError as error:
            raise ValueError(f"the key file cannot be read ({error.strerror or error})") from None
        except (ValueError, TypeError, KeyError, AttributeError):
            why = """the key file must be {"current": "ID", "keys": {"ID": "32 bytes in base64"}}"""
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
            raise DoesNotOpen(f"encrypted with the key '{shown}', which is not among the given keys: add it")
        try:
            raw = base64.b64decode(encoded, validate=True)
            data: bytes = cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], owner.encode())
        except (self._broken, binascii.Error, ValueError):
            raise DoesNotOpen(
                f"the record cannot be decrypted with the key '{name}': the key is wrong, or the record was "
                "changed"
            ) from None
        return data


def checked_seal(given: object) -> Seal | None:
    """Return ``given``, which must be a seal or None.

    Raises:
        ValueError: ``given`` is neither a seal nor None.
    """
    refuse_class(given, name="seal")
    if given is None:
        return None
    if not (callable(getattr(given, "sealed", None)) and callable(getattr(given, "opened", None))):
        raise ValueError("seal: must have the methods of Seal: pass a KeySeal")  # noqa: TRY004 - as for every invalid setting
    return _CheckedSeal(cast("Seal", given))


class _CheckedSeal:
    """Wraps a seal so that it raises only `DoesNotOpen` and `SealFailed`."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal

    def sealed(self, data: bytes, *, owner: str) -> str:
        """See `Seal.sealed`."""
        text = _called(partial(self._seal.sealed, data, owner=owner), "encrypt")
        if type(text) is not str or not text.startswith(MARK):
            raise SealFailed(f"the seal did not return a string that starts with {MARK!r}")
        return text

    def opened(self, text: str, *, owner: str) -> bytes:
        """See `Seal.opened`."""
        data = _called(partial(self._seal.opened, text, owner=owner), "decrypt")
        if type(data) is not bytes:
            raise SealFailed("the seal did not return the decrypted data as bytes")
        return data


def _called(call: Callable[[], Any], what: str) -> Any:
    try:
        return call()
    except ENDS_THE_PROGRAM:
        raise
    except BaseException as error:  # noqa: BLE001 - handled below
        failed = bare_alone(error)
    if is_a(failed, DoesNotOpen):
        raise DoesNotOpen(text_of(failed)) from cause_of(failed)
    raise SealFailed(f"the seal could not {what} ({name_of(failed)})") from failed


RecordId = tuple[str, str]
"""The scope and key of a record."""


def owner_of(kind: str, name: str, place: RecordId | None) -> str:
    """Return the ``owner`` for a `Seal`. ``name`` is the id of an intent or an order."""
    return name if place is None else json.dumps([kind, *place, name])


def opened(seal: Seal | None, text: str, *, owner: str, formerly: str) -> bytes:
    """Decrypt a ciphertext. Earlier versions used ``formerly`` as the owner.

    Raises:
        DoesNotOpen: the ciphertext cannot be decrypted, or there is no seal.
    """
    if seal is None:
        raise DoesNotOpen("encrypted, but this journal has no seal: pass seal=")
    try:
        return seal.opened(text, owner=owner)
    except DoesNotOpen:
        if owner == formerly:
            raise
    return seal.opened(text, owner=formerly)


def sealed_reply(seal: Seal, reply: bytes, order_id: str | None, place: RecordId | None) -> bytes:
    """Encrypt the service's reply, and bind the ciphertext to the key and the order."""
    return seal.sealed(reply, owner=owner_of("reply", order_id or "", place)).encode()


def opened_reply(
    seal: Seal | None, reply: bytes | None, order_id: str | None, place: RecordId | None
) -> bytes | None:
    """Decrypt a reply; return an unencrypted reply unchanged.

    Raises:
        DoesNotOpen: the ciphertext cannot be decrypted, or there is no seal.
    """
    if reply is None or not reply.startswith(MARK.encode()):
        return reply
    owner = owner_of("reply", order_id or "", place)
    return opened(seal, reply.decode(errors="replace"), owner=owner, formerly=order_id or "")


def _aes_gcm() -> tuple[Callable[[bytes], Any], type[Exception]]:
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise ValueError("a KeySeal needs cryptography: pip install 'transfer_async[seal]'") from error
    return AESGCM, InvalidTag
