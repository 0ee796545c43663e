"""A clock that a test moves, and a list of the events that the code under test emitted."""

from fileq.core.events import Event


class ManualClocks:
    """A monotonic clock and a wall clock that run together until one of them is moved."""

    def __init__(self, seconds: float = 1000.0, wall_ns: int = 1_800_000_000 * 10**9) -> None:
        self.seconds = seconds
        self.wall = wall_ns

    def monotonic(self) -> float:
        return self.seconds

    def wall_ns(self) -> int:
        return self.wall

    def advance(self, seconds: float) -> None:
        self.seconds += seconds
        self.wall += round(seconds * 1e9)

    def step(self, seconds: float) -> None:
        """Sets the wall clock forward or back, as an operator or NTP does."""
        self.wall += round(seconds * 1e9)


class RecordedEvents:
    """Stands in for `emit` and keeps every event."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def __call__(self, event: Event) -> None:
        fields = {name: value for name in event.__struct_fields__ if (value := getattr(event, name)) is not None}
        self.events.append((event.name, {"level": event.level, **fields}))

    def count(self, name: str) -> int:
        return sum(event == name for event, _ in self.events)

    def fields(self, name: str) -> dict[str, object]:
        return next(fields for event, fields in self.events if event == name)
