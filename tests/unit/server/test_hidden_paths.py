"""What a server with `server.files: none` leaves of an answer."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fileq.core.delivery import CHECK_TYPE, DeliveryCheck, naming_others, problem_of, with_others, without_files
from fileq.server.hidden_paths import without_paths

SIZES = (None, 3, 5)


def check_errors() -> list[str]:
    """The errors of three checks of a delivery: a missing file, a wrong size and a wrong checksum."""
    found = []
    for number, size in enumerate(SIZES):
        check = DeliveryCheck("/in/secret", f"/in/secret/a file {number}; b.pdf", 5, "abc")
        found.append((check, problem_of(check, size, "def")))
    return [with_others(text, check) for (_, text), check in zip(found, naming_others(found), strict=True)]


def test_the_errors_of_checks_keep_everything_but_the_files() -> None:
    missing, size, checksum = (
        "missing: … is in the manifest and does not exist",
        "wrong size: … has 3 bytes, the manifest says 5",
        "wrong checksum: … has sha256 def, the manifest says abc",
    )
    assert [without_files(error) for error in check_errors()] == [
        f"{missing}; also: {size}; {checksum}",
        f"{size}; also: {missing}; {checksum}",
        f"{checksum}; also: {missing}; {size}",
    ]


def test_an_error_that_was_cut_within_a_path_names_no_file() -> None:
    error = check_errors()[0]
    for length in range(error.index("; also: ") + 8, len(error)):
        hidden = without_files(error[:length])
        assert "secret" not in hidden, error[:length]
        assert " file " not in hidden, error[:length]
    long = problem_of(DeliveryCheck("/in", f"/in/{'secret' * 100}.pdf", 5), None, "")
    assert without_files(long[:500]) == "missing: …"


@pytest.mark.parametrize("error", ["missing: the column total", "ValueError: wrong size: 3", ""])
def test_other_errors_stay_as_they_are(error: str) -> None:
    assert without_files(error) == error


def test_a_delivery_that_could_not_be_read_names_no_file() -> None:
    error = "incomplete: after 1h it could not be read ([Errno 13] Permission denied: '/in/secret (1)/list')"
    assert without_files(error) == "incomplete: after 1h it could not be read (…)"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"path": "/in/a.pdf", "error": "no /in/a.pdf", "payload": {"path": "/mine"}, "outputs": [{"path": "/o"}]},
            {"path": "", "error": "no …", "payload": {"path": "/mine"}, "outputs": []},
        ),
        (
            {"type": CHECK_TYPE, "payload": {"path": "/in/a", "also": ["no /in/a"]}, "result": {"path": "/in/a"}},
            {"type": CHECK_TYPE, "payload": {"path": "", "also": ["no …"]}, "result": {"path": ""}},
        ),
        ({"type": "fileq.scan", "payload": {"dir": "/in"}}, {"type": "fileq.scan", "payload": {"dir": ""}}),
        (
            {"id": "delivery-a-1.then", "type": "import", "payload": {"directory": "/in", "note": "no /in"}},
            {"id": "delivery-a-1.then", "type": "import", "payload": {"directory": "", "note": "no …"}},
        ),
        (
            {"id": "a", "type": "import", "payload": {"batch_id": "delivery-a-1", "directory": "/in"}},
            {"id": "a", "type": "import", "payload": {"batch_id": "delivery-a-1", "directory": "/in"}},
        ),
        (
            {"id": "delivery-a-1", "name": "/in/day 1", "allow_failures": False, "first_error": "no /in/day 1/x"},
            {"id": "delivery-a-1", "name": "", "allow_failures": False, "first_error": ""},
        ),
        (
            {"id": "mine", "name": "nightly", "allow_failures": False},
            {"id": "mine", "name": "nightly", "allow_failures": False},
        ),
        ({"batch_id": "delivery-a-1", "batch": "/in"}, {"batch_id": "delivery-a-1", "batch": ""}),
        ({"roots": ["/data"], "problem": "/data is away"}, {"roots": [], "problem": "… is away"}),
        ({"lost_roots": ["/data is away"]}, {"lost_roots": ["…"]}),
    ],
)
def test_paths_are_hidden_where_fileq_has_put_them(given: Any, expected: Any) -> None:
    assert without_paths(given) == expected
    assert without_paths([given]) == [expected]
    assert without_paths(msgspec.json.decode(msgspec.json.encode(expected))) == expected


@pytest.mark.parametrize("named", [{"type": "fileq.scan"}, {"id": "delivery-x.then"}, {"id": "delivery-x.catch"}])
def test_data_that_is_nested_too_deep_for_fileq_stays_as_it_is(named: dict[str, str]) -> None:
    """A5: without a bound, one job that looked like fileq's own made every list of jobs answer 500."""
    deep = msgspec.json.decode(b"[" * 900 + b"]" * 900)
    given = {"path": "/in/a", **named, "payload": {"batch_id": "delivery-x", "dir": "/in", "error": deep}}
    assert msgspec.json.encode(without_paths([given])) == msgspec.json.encode([given | {"path": ""}])


def calls_for(value: Any) -> int:
    """How many functions are called to hide the paths of this value, those of str among them."""
    count = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        without_paths(value)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("error", ["ValueError: x", "no such file: /srv/inbox/a/7.pdf or /srv/inbox/b", "/" * 50])
def test_the_calls_to_hide_the_paths_of_a_page_grow_like_the_page(error: str) -> None:
    """medium: with `files: none` each text of a page was searched for each path of it: 1,000 jobs took 15 s."""

    def page(count: int) -> Any:
        return {"jobs": [{"id": str(n), "path": f"/srv/inbox/a/{n}.pdf", "error": error} for n in range(count)]}

    assert calls_for(page(400)) < 2.5 * calls_for(page(200))


@given(
    st.lists(st.text("/ab", min_size=3, max_size=6), max_size=6),
    st.text("/abc", max_size=20),
)
def test_no_known_path_is_left_in_a_text(paths: list[str], text: str) -> None:
    [*_, hidden] = without_paths([*({"path": path} for path in paths), {"error": text}])
    assert not [path for path in paths if path in hidden["error"]]
    assert hidden["error"].replace("…", "") in text or "…" in hidden["error"]


def test_the_longest_known_path_is_hidden() -> None:
    jobs = [
        {"path": "/in/a"},
        {"path": "/in/a/b.pdf"},
        {"path": "/in/a/b"},
        {"error": "at /in/a/b.pdf, /in/a/bc, /in/b"},
    ]
    assert without_paths(jobs)[-1] == {"error": "at …, …c, /in/b"}
