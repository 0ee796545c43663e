"""Checks what schedules need: the rules of time zones. Says nothing if the configuration has no schedule."""

from __future__ import annotations

from collections.abc import Iterator

from fileq.config import Config
from fileq.core.finding import Finding, sound, wrong

_ADVICE = "install it: pip install tzdata; or the time zones of the system"


def check_schedules(config: Config) -> Iterator[Finding]:
    """Zones with other names were refused when the configuration was loaded."""
    if not config.schedules:
        return
    from fileq.core.schedule import next_slot

    for name, settings in config.schedules.items():
        try:
            next_slot(settings.definition, now_ms=0)
        except ValueError as error:
            yield wrong("schedules", f"{name}: {error}", "fix it in the configuration")
    try:
        import tzdata  # type: ignore[import-untyped]
    except ImportError:
        yield wrong("time zones", "the package tzdata is missing", _ADVICE)
        return
    yield sound("schedules", f"{len(config.schedules)} in the configuration; time zones of {tzdata.IANA_VERSION}")
