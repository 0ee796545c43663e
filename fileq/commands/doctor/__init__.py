"""`fileq doctor`: checks the environment of fileq and yields findings. Must create and change nothing.

check_broker.py checks the broker, check_files.py directories and watches, check_handlers.py the routes,
check_schedules.py the time zones, check_webhooks.py the webhooks, check_server.py the REST server, check_port.py the
port of /metrics. A check must not raise: doctor runs on systems that are broken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from fileq.brokers.protocol import FullBroker
from fileq.commands.doctor.check_broker import check_broker
from fileq.commands.doctor.check_files import check_after, check_roots, check_scan_dir, check_watching
from fileq.commands.doctor.check_handlers import check_handlers
from fileq.commands.doctor.check_port import check_port
from fileq.commands.doctor.check_schedules import check_schedules
from fileq.commands.doctor.check_server import check_server, is_configured
from fileq.commands.doctor.check_webhooks import check_webhooks
from fileq.config import Loaded
from fileq.core.finding import Finding, sound, wrong

ROLES = ("producer", "worker", "all", "serve", "start")


def check_environment(
    loaded: Loaded, role: str, app_dir: str, open_broker: Callable[[], FullBroker]
) -> Iterator[Finding]:
    """Yields every finding as soon as it is known."""
    yield sound("configuration", loaded.path or "no file, all defaults")
    checks: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        ("broker", lambda: check_broker(loaded, open_broker)),
    ]
    if role in ("producer", "all", "start"):
        checks += [("scan_dir", lambda: check_scan_dir(loaded)), ("watching", lambda: check_watching(loaded.config))]
    if role in ("worker", "all", "start"):
        checks += [
            ("roots", lambda: check_roots(loaded)),
            ("after", lambda: check_after(loaded.config)),
            ("handlers", lambda: check_handlers(loaded, app_dir)),
            ("schedules", lambda: check_schedules(loaded.config)),
            ("webhooks", lambda: check_webhooks(loaded, open_broker)),
        ]
    if role in ("serve", "start") or (role == "all" and is_configured(loaded)):
        checks.append(("server", lambda: check_server(loaded, open_broker)))
    checks.append(("metrics port", lambda: check_port(loaded)))
    for name, check in checks:
        try:
            yield from check()
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            yield wrong(name, f"{where}{error.strerror or error}", "fix it, then run 'fileq doctor' again")
