"""What a broker promises about the catalog: small named documents with a revision, such as webhooks and keys.

Brokers do not read the documents. The rules of protocol.py hold here too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec
from msgspec import Struct

from fileq.core.errors import BrokerError, Conflict

MAX_DOCUMENT_BYTES = 64 << 10
NAME_RULE = "[A-Za-z0-9._-]{1,100}"
_NAME = re.compile(NAME_RULE)
D = TypeVar("D")


class Document(Struct, frozen=True):
    """One document. Its revision is greater than every earlier one of its kind."""

    body: bytes
    revision: int


def readable(documents: Mapping[str, Document], type: type[D]) -> dict[str, D]:
    """What the documents say, by their names. One that can't be read, perhaps of a later version, is left out."""
    found = {}
    for name, document in documents.items():
        try:
            found[name] = msgspec.json.decode(document.body, type=type)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return found


def is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def check_name(what: str, name: str) -> str:
    """The name. Raises BrokerError for one that could be mistaken for something else, such as a key of Redis."""
    if not is_name(name):
        raise BrokerError(f"{what} {name!r} can't be used; a name must match {NAME_RULE}")
    return name


def check_document(kind: str, name: str, body: bytes) -> None:
    check_name("kind", kind)
    check_name("name", name)
    if len(body) > MAX_DOCUMENT_BYTES:
        raise BrokerError(f"document {name!r} of {kind} has {len(body)} bytes; at most {MAX_DOCUMENT_BYTES} (64kB) fit")


def conflict(kind: str, name: str, expected: int, found: int) -> Conflict:
    is_now = f"its revision is {found}" if found else "it does not exist"
    return Conflict(f"document {name!r} of {kind}: expected revision {expected}, but {is_now}; read it again")


class Catalog(Protocol):
    """Kinds and names match NAME_RULE, and a document has at most MAX_DOCUMENT_BYTES; otherwise BrokerError."""

    def documents(self, kind: str) -> dict[str, Document]:
        """All documents of a kind by name, of one moment. Only reads."""
        ...

    def documents_of(self, kinds: Sequence[str]) -> list[dict[str, Document]]:
        """As documents(), for each of these kinds, in one round trip; each kind is of one moment. Only reads."""
        ...

    def put_document(
        self, kind: str, name: str, body: bytes, expected: int | None = None, *, frees_memory: bool = False
    ) -> int:
        """Creates or replaces a document and returns its revision: the next number of its kind.

        Raises Conflict, and changes nothing, if `expected` is given and is not the document's revision; 0 means that
        there must be none. A document that has this body already is left as it is, whatever was expected.
        `frees_memory`: what the document is for frees memory, so a server whose memory is full takes it too.

        Atomicity: the document and its revision. Repeat: the same revision, unless the document was changed since.
        Kill -9: the old document or the new one."""
        ...

    def remove_document(self, kind: str, name: str, expected: int | None = None) -> bool:
        """Removes a document. False if there is none; raises Conflict as put_document() does if there is another one.

        Atomicity: the document. Repeat: False. Kill -9: removed or not."""
        ...

    def catalog_revision(self, kind: str) -> int:
        """A number that grows with every change of this kind; 0 before the first. Only reads; cheap."""
        ...
