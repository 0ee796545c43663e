"""The paths of files that worker.after has moved."""

from fileq.files.paths import Paths


def test_files_in_a_folder_that_they_are_moved_to_are_allowed_and_keep_their_path_below_it() -> None:
    paths = Paths("/srv/in", {}, [], ["/srv/in/failed", "/srv/done", "/srv"])
    assert paths.roots == (b"/srv/in",)
    assert paths.folders == (b"/srv/in/failed", b"/srv/done")  # /srv is above the root
    assert paths.allowed == (b"/srv/in", b"/srv/done")  # what is below a root is allowed by that root
    names = (b"/srv/in/a/b", b"/srv/in/failed/a/b", b"/srv/done/a/b", b"/srv/x/a/b")
    assert [paths.relative(name) for name in names] == ["a/b", "a/b", "a/b", "srv/x/a/b"]
