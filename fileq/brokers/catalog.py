"""The catalog: small named documents with a revision, such as webhooks and keys.

`Catalog` is what a broker promises; it does not read the documents. The rules of protocol.py hold here too. Everything
else reads and writes them through a `Table`, one kind of documents of one type, or a `CappedLog`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

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

    def documents_of(self, kinds: Sequence[str]) -> list[dict[str, Document]]:
        """As documents(), for each of these kinds, in one round trip; each kind is of one moment. Only reads."""

    def put_document(
        self, kind: str, name: str, body: bytes, expected: int | None = None, *, frees_memory: bool = False
    ) -> int:
        """Creates or replaces a document and returns its revision: the next number of its kind.

        Raises Conflict, and changes nothing, if `expected` is given and is not the document's revision; 0 means that
        there must be none. A document that has this body already is left as it is, whatever was expected.
        `frees_memory`: what the document is for frees memory, so a server whose memory is full takes it too.

        Atomicity: the document and its revision. Repeat: the same revision, unless the document was changed since.
        Kill -9: the old document or the new one."""

    def remove_document(self, kind: str, name: str, expected: int | None = None) -> bool:
        """Removes a document. False if there is none; raises Conflict as put_document() does if there is another one.

        Atomicity: the document. Repeat: False. Kill -9: removed or not."""

    def catalog_revision(self, *kinds: str) -> int:
        """A number that grows with every change of one of these kinds; 0 before the first. Only reads; cheap."""


TRIES = 20  # how often a change is tried while other processes change the same document
TRIM_ONE_IN = 16


class Table(Generic[D]):
    """One kind of documents, all of one type. One that can't be read, perhaps of a later version, affects only itself:
    it is as if there were none."""

    def __init__(self, kind: str, type: Any) -> None:
        self.kind = kind
        self._decoder: msgspec.json.Decoder[D] = msgspec.json.Decoder(type)

    def read(
        self, documents: Mapping[str, Document], unreadable: Callable[[str, Exception], object] | None = None
    ) -> dict[str, D]:
        """What documents of this kind say, by name. `unreadable` is called with the name of one that is left out."""
        found = {}
        for name, document in documents.items():
            try:
                found[name] = self._decoder.decode(document.body)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                if unreadable is not None:
                    unreadable(name, error)
        return found

    def all(self, catalog: Catalog) -> dict[str, D]:
        """By name. One round trip."""
        return self.read(catalog.documents(self.kind))

    def get(self, catalog: Catalog, name: str) -> D | None:
        return self.all(catalog).get(name)

    def put(self, catalog: Catalog, name: str, value: D, expected: int | None = None) -> int:
        """Creates or replaces a document, as Catalog.put_document() does."""
        return catalog.put_document(self.kind, name, msgspec.json.encode(value), expected)

    def remove(self, catalog: Catalog, name: str, expected: int | None = None) -> bool:
        """Removes a document, as Catalog.remove_document() does."""
        return catalog.remove_document(self.kind, name, expected)

    def change(self, catalog: Catalog, name: str, change: Callable[[D | None], D]) -> D:
        """Writes what `change` makes of the document and returns it. It is called again with the new document if
        another process changed it at the same time; raises Conflict if that happens again and again."""
        for left in reversed(range(TRIES)):
            documents = catalog.documents(self.kind)
            revision = documents[name].revision if name in documents else 0
            after = change(self.read(documents).get(name))
            try:
                self.put(catalog, name, after, revision)
                return after
            except Conflict:
                if not left:
                    raise
        raise AssertionError("unreachable")


class CappedLog(Table[D]):
    """A table of which the newest documents are kept: their names begin with the time. `most` entries in all;
    `entries_in` says how many a document has."""

    def __init__(self, kind: str, type: Any, most: int, entries_in: Callable[[D], int] = lambda value: 1) -> None:
        super().__init__(kind, type)
        self._most = most
        self._entries_in = entries_in

    def add(self, catalog: Catalog, name: str, value: D) -> None:
        """Writes a document. One call in TRIM_ONE_IN removes the oldest ones."""
        self.put(catalog, name, value)
        if os.urandom(1)[0] % TRIM_ONE_IN == 0:
            self.trim(catalog)

    def trim(self, catalog: Catalog, most: int | None = None) -> None:
        """Removes the oldest documents beyond this many entries; the newest one stays."""
        documents, count = catalog.documents(self.kind), 0
        known = self.read(documents)
        for place, name in enumerate(sorted(documents, reverse=True)):
            count += self._entries_in(known[name]) if name in known else 1
            if place and count > (self._most if most is None else most):
                self.remove(catalog, name)

    def newest(self, documents: Mapping[str, Document]) -> list[D]:
        """What documents of this kind say, the newest first."""
        return [value for _, value in sorted(self.read(documents).items(), reverse=True)]


def entry_name(now_ms: int) -> str:
    """A new name for a document of a log."""
    return f"{now_ms:013d}-{os.urandom(4).hex()}"
