"""What is known of each delivery directory, kept on the broker, so that restarts and other producers go on with it.

One document of the catalog for each directory. It is written before the batch that it names is created, and every
change is compared with the revision that was read, so of several producers one opens a delivery and the others use it.
What a kill -9 leaves: a document whose batch does not exist yet (the next call creates it), or one that says `open`
although its batch is sealed (the next look corrects it).
"""

from __future__ import annotations

import hashlib
import os
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from fileq.brokers.batches import Batches
from fileq.brokers.catalog import Catalog, readable
from fileq.core.errors import BrokerError, Conflict
from fileq.core.own_jobs import DELIVERY_BATCHES

KIND = "deliveries"
WAITING_MAX = 16  # sealed deliveries of one directory whose end is still to be written down


class SealedDelivery(Struct, frozen=True):
    """A delivery whose jobs have not all ended yet."""

    batch_id: str


class DeliveryRecord(Struct, frozen=True, omit_defaults=True):
    """One directory. `first_ms` is the producer's clock, in ms since the epoch.

    `newest_ns` is the last change in the directory, by the clock of its file system, when its last delivery was sealed:
    files, markers and manifests that did not change since then belong to an earlier delivery."""

    path: bytes
    number: int = 0  # how many deliveries there were so far
    batch_id: str = ""  # the batch of the delivery that is open
    first_ms: int = 0  # when it was opened
    newest_ns: int = 0
    waiting: tuple[SealedDelivery, ...] = ()


class RegisteredDelivery(Struct):
    """A record as it was read, with its revision."""

    record: DeliveryRecord
    revision: int


class DeliveryBroker(Batches, Catalog, Protocol):
    """What deliveries need of a broker."""


def document_name(path: bytes) -> str:
    return hashlib.sha256(path).hexdigest()[:32]


def batch_id_of(path: bytes, number: int) -> str:
    """The same for every producer: of two that open a delivery at the same time, both name the same batch."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in os.fsdecode(path)[-40:]).strip(
        "_"
    )
    return f"{DELIVERY_BATCHES}{name or 'root'}-{document_name(path)[:8]}-{number}"


class DeliveryRegister:
    """The documents of all directories below `root`."""

    def __init__(self, broker: DeliveryBroker, root: bytes) -> None:
        self._broker = broker
        self._above = root.rstrip(b"/") + b"/"
        self._known: dict[bytes, RegisteredDelivery] = {}
        self._revision = -1

    def refresh(self) -> None:
        """Reads what other producers have written."""
        revision = self._broker.catalog_revision(KIND)
        if revision != self._revision:
            documents = self._broker.documents(KIND)
            self._known = {
                record.path: RegisteredDelivery(record, documents[name].revision)
                for name, record in readable(documents, DeliveryRecord).items()
                if record.path.startswith(self._above)
            }
            self._revision = revision

    def records(self) -> list[DeliveryRecord]:
        return [one.record for one in self._known.values()]

    def record(self, path: bytes) -> DeliveryRecord:
        known = self._known.get(path)
        return known.record if known is not None else DeliveryRecord(path)

    def write(self, record: DeliveryRecord) -> DeliveryRecord:
        """Writes a changed record. If another producer was faster, nothing is written, and its record is returned."""
        known = self._known.get(record.path)
        expected = known.revision if known is not None else 0
        try:
            revision = self._broker.put_document(
                KIND, document_name(record.path), msgspec.json.encode(record), expected
            )
        except Conflict:
            self._revision = -1
            self.refresh()
            return self.record(record.path)
        self._known[record.path] = RegisteredDelivery(record, revision)
        if revision == self._revision + 1:  # no other producer has written in between, so there is nothing to read
            self._revision = revision
        return record

    def remove(self, path: bytes) -> None:
        """Forgets a directory that no longer exists."""
        known = self._known.pop(path, None)
        if known is not None:
            try:
                self._broker.remove_document(KIND, document_name(path), known.revision)
            except (Conflict, BrokerError):
                self._revision = -1

    def open(self, path: bytes, now_ms: int) -> DeliveryRecord:
        """The record with an open delivery; the caller creates its batch."""
        record = self.record(path)
        if record.batch_id:
            return record
        number = record.number + 1
        return self.write(replace(record, number=number, batch_id=batch_id_of(path, number), first_ms=now_ms))

    def sealed(self, path: bytes, batch_id: str, newest_ns: int) -> None:
        """The delivery of this batch takes no more files."""
        record = self.record(path)
        if record.batch_id == batch_id:
            waiting = (*record.waiting, SealedDelivery(batch_id))[-WAITING_MAX:]
            newest_ns = max(newest_ns, record.newest_ns)
            self.write(replace(record, batch_id="", first_ms=0, newest_ns=newest_ns, waiting=waiting))

    def finished(self, path: bytes, batch_id: str) -> None:
        record = self.record(path)
        self.write(replace(record, waiting=tuple(one for one in record.waiting if one.batch_id != batch_id)))
