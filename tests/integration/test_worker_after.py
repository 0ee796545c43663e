"""What happens to files after their job (`worker.after`). The installed program, with every broker where it matters."""

from __future__ import annotations

from pathlib import Path

from tests.support.producer_setup import wait_for_new_scan
from tests.support.waiting import wait_until
from tests.support.worker_setup import WorkerSetup, on_files


def files_below(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def test_a_file_moved_below_scan_dir_is_not_processed_again(each_setup: WorkerSetup) -> None:
    setup = each_setup
    inbox = setup.inbox
    for name in ("good", "bad.txt"):
        (inbox / name).write_text(name)
    handlers = on_files("on_file").replace("[", '[{match: "bad.txt", use: "worker_handlers:permanent"}, ')
    program = setup.worker(
        str(inbox),
        role="all",
        count=2,
        handlers=handlers,
        worker__after__completed=f"move:{inbox}/done",
        worker__after__dead=f"move:{inbox}/failed/today",
        producer__rescan_interval="1s",
    )
    wait_until(lambda: files_below(inbox) == ["done/good", "failed/today/bad.txt"], 30)
    wait_for_new_scan(program, 2)
    (inbox / "late").write_text("late")  # proof that it still finds files, by events and by scans
    wait_until(lambda: (inbox / "done/late").exists(), 30)
    wait_for_new_scan(program, 2)
    assert setup.census().counters["produced"] == 3
    assert files_below(inbox) == ["done/good", "done/late", "failed/today/bad.txt"]
