"""Changes of schedules from outside of the configuration: add, remove, pause, resume, run now.

Schedules of the configuration can be paused and run, not edited. The broker's clock decides what is next.
"""

from __future__ import annotations

from contextlib import suppress

from msgspec import to_builtins
from msgspec.structs import replace

from fileq.brokers import schedule_definitions as definitions
from fileq.brokers.catalog import check_name
from fileq.brokers.protocol import FullBroker
from fileq.brokers.schedule_definitions import KIND, KnownSchedule, broker_now_ms, known_schedules
from fileq.brokers.types import Entry
from fileq.client.options import WantedSchedule
from fileq.config import Config
from fileq.config.load import schedule_from
from fileq.core.errors import BrokerError, ConfigError, Unknown
from fileq.core.schedule import ScheduleDocument, encode_document, job_of, manual_id_of
from fileq.core.text import did_you_mean


def add_schedule(
    broker: FullBroker, config: Config, name: str, options: WantedSchedule, *, where: str, expected: int | None = None
) -> None:
    """Defines a schedule or replaces its definition; the same definition again changes nothing. Raises Conflict if its
    document has another revision than `expected`."""
    settings = schedule_from(name, to_builtins(options), where, config.worker.priorities)
    found = known_schedules(broker).get(name)
    if found is not None and found.document is not None and found.document.is_configured:
        raise ConfigError(f"schedule {name} is defined by the configuration; change it there, or choose another name")
    definition = settings.definition
    if options.type is not None:
        definition = replace(definition, payload=options.payload)  # as it was given, not as a file would have it
    # `paused` is for new schedules: pause and resume are for those that exist.
    is_paused = settings.paused if found is None or found.document is None else found.document.is_paused
    document = ScheduleDocument(definition=definition, is_paused=is_paused)
    definitions.define(broker, name, document, broker_now_ms(broker), expected)


def remove_schedule(broker: FullBroker, config: Config, name: str) -> None:
    found = the_schedule(broker, name)
    if name in config.schedules:
        raise ConfigError(f"schedule {name} is in the configuration; remove it there, then here or restart the workers")
    if found.document is not None and found.document.is_configured and not found.document.unclaimed_ms:
        advice = "remove it there and restart or reload that worker"
        raise ConfigError(f"schedule {name} is in the configuration of a worker; {advice}")
    definitions.remove(broker, name)


def pause_schedule(broker: FullBroker, name: str) -> bool:
    """False if it was paused already."""
    found = _complete(broker, the_schedule(broker, name))
    broker.pause_schedule(name)
    return not (found.state is not None and found.state.is_paused)


def resume_schedule(broker: FullBroker, name: str) -> bool:
    """False if it was not paused. What was due in the pause is not made up."""
    found = _complete(broker, the_schedule(broker, name))
    return definitions.resume(broker, found, broker_now_ms(broker))


def run_now(broker: FullBroker, config: Config, name: str) -> str:
    """Enqueues a job of the schedule beside its times, and notes it in its document; returns its id."""
    found = the_schedule(broker, name)
    document = found.document
    if document is None:
        raise BrokerError(f"schedule {name} can't be run: its definition can't be read")
    definition, now_ms = document.definition, broker_now_ms(broker)
    queue = definition.priority or config.producer.default_priority
    id = manual_id_of(name)
    job = job_of(definition, id=id, slot_ms=now_ms, missed=0, queue=queue, now_ms=now_ms)
    broker.enqueue([Entry(job, queue, always=True, is_own=True)])
    noted = replace(document, by_hand_ms=now_ms, by_hand_id=id)
    with suppress(BrokerError):  # its definition was changed meanwhile, or the broker is away: the job is there
        broker.put_document(KIND, name, encode_document(noted), found.catalog_revision)
    return id


def the_schedule(broker: FullBroker, name: str) -> KnownSchedule:
    """Raises Unknown, with the nearest name, if there is none."""
    check_name("schedule", name)
    known = known_schedules(broker)
    if name in known:
        return known[name]
    advice = did_you_mean(name, known, "'fileq schedule list' lists them")
    raise Unknown(f"no schedule is named {name!r}; {advice}")


def _complete(broker: FullBroker, found: KnownSchedule) -> KnownSchedule:
    """After a repair, if a process was killed while it defined the schedule."""
    if found.document is None:
        raise BrokerError(f"schedule {found.name} can't be changed: {found.problem or 'its definition is missing'}")
    if not found.is_complete:
        definitions.repair(broker, found, broker_now_ms(broker))
        return the_schedule(broker, found.name)
    return found
