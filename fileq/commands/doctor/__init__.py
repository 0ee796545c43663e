"""`fileq doctor`: looks at everything fileq needs around it, one finding a check. Makes and changes nothing.

broker.py asks the broker, files.py looks at directories and watches, handlers.py at what workers run. Each check bears
whatever it meets: a sick system is what it is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from fileq.brokers.protocol import FullBroker
from fileq.commands.doctor.broker import check_broker
from fileq.commands.doctor.files import check_after, check_roots, check_scan_dir, check_watching
from fileq.commands.doctor.handlers import check_handlers
from fileq.commands.doctor.port import check_port
from fileq.config import Loaded
from fileq.core.finding import Finding, sound, wrong

ROLES = ("producer", "worker", "all")


def examine_surroundings(
    loaded: Loaded, role: str, app_dir: str, open_broker: Callable[[], FullBroker]
) -> Iterator[Finding]:
    """Every finding, as soon as it is known."""
    yield sound("configuration", loaded.path or "no file, all defaults")
    checks: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        ("broker", lambda: check_broker(loaded, open_broker)),
    ]
    if role in ("producer", "all"):
        checks += [("scan_dir", lambda: check_scan_dir(loaded)), ("watching", lambda: check_watching(loaded.config))]
    if role in ("worker", "all"):
        checks += [
            ("roots", lambda: check_roots(loaded.config)),
            ("after", lambda: check_after(loaded.config)),
            ("handlers", lambda: check_handlers(loaded, app_dir)),
        ]
    checks.append(("metrics port", lambda: check_port(loaded)))
    for name, check in checks:
        try:
            yield from check()
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            yield wrong(name, f"{where}{error.strerror or error}", "see to it, and look again")
