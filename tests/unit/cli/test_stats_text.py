"""What `fileq stats` prints about slots."""

from fileq.cli.stats_text import render
from fileq.cli.terminal import Screen
from fileq.commands.admin.stats import gather
from fileq.testing.conformance.builders import names, worker_info
from fileq.testing.conformance.harness import config_of
from fileq.testing.conformance.memory_harness import MemoryHarness


def test_places_for_jobs_that_are_claimed_in_advance_do_not_count_as_slots_that_are_alive() -> None:
    harness = MemoryHarness(config_of("memory", {}))
    slots = dict.fromkeys(names(6, "slot"), worker_info())
    in_advance = dict.fromkeys(names(58, "extra"), worker_info(is_extra=True))
    harness.broker.register({**slots, **in_advance})
    stats = gather(harness.broker)
    assert stats.heartbeats == 64
    assert any(line.endswith("of 6 slots, 6 alive (with a heartbeat)") for line in render(stats, Screen(80, 24)))
