"""Texts that only this installation can have made: session cookies and cursors.

The secret is a document of the catalog, so that all servers of a broker accept each other's texts and a restart ends
no session. A program that can read the broker can make such texts; it can change every job as well.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import Any, TypeVar

import msgspec

from fileq.brokers.catalog import Catalog
from fileq.core.errors import Conflict
from fileq.server.decoding import invalid_at

KIND, NAME = "server", "signing-secret"
T = TypeVar("T")


class Signer:
    """Signs values for a purpose; a text made for another purpose is not accepted."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def seal(self, purpose: str, value: Any) -> str:
        body = _text(msgspec.json.encode(value))
        return f"{body}.{self._signature(purpose, body)}"

    def open(self, purpose: str, text: str, type: type[T]) -> T | None:
        """The value; None for a text that was not made by seal() for this purpose."""
        body, _, signature = text.partition(".")
        if not hmac.compare_digest(signature.encode(), self._signature(purpose, body).encode()):
            return None
        try:
            return msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=type)
        except (msgspec.DecodeError, binascii.Error, ValueError):
            return None  # made by another version

    def cursor(self, place: str, value: Any) -> str | None:
        """An opaque cursor for the next page of a list; None at its end. `place` names the list and its filter."""
        return self.seal(f"cursor:{place}", value) if value else None

    def read_cursor(self, place: str, text: str | None, type: type[T]) -> T | None:
        """None without a cursor. Raises ApiProblem for one of another list or filter, or of none."""
        if not text:
            return None
        value = self.open(f"cursor:{place}", text, type)
        if value is None:
            raise invalid_at("?cursor", "cursor is not one of this list and filter; begin without it")
        return value

    def digest(self, purpose: str, text: str) -> bytes:
        """The same on all servers of a broker, and unknown to everyone else."""
        return hmac.digest(self._secret, f"{purpose}\n{text}".encode(errors="replace"), hashlib.sha256)

    def _signature(self, purpose: str, body: str) -> str:
        return _text(self.digest(purpose, body))


def _text(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")


def signer_of(catalog: Catalog) -> Signer:
    """Of several servers that start at once, one makes the secret."""
    document = catalog.documents(KIND).get(NAME)
    if document is None:
        try:
            made = secrets.token_hex(32).encode()
            catalog.put_document(KIND, NAME, made, expected=0)
            return Signer(made)
        except Conflict:
            document = catalog.documents(KIND)[NAME]
    return Signer(document.body)
