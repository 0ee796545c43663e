"""Fingerprints: which errors are one group, and which are not."""

from __future__ import annotations

import re

import pytest

from fileq.core.fingerprint import LENGTH, fingerprint, innermost_frame, wording

# Each row is one cause, told by different jobs.
SAME = {
    "quoted texts": (
        "KeyError: 'customer'",
        "KeyError: 'order number'",
        'KeyError: "it\'s"',
        "KeyError: b'raw'",
        "KeyError: \u2018as GNU tools quote\u2019",
    ),
    "paths": (
        "FileNotFoundError: [Errno 2] No such file or directory: '/srv/inbox/a.pdf'",
        "FileNotFoundError: [Errno 2] No such file or directory: '/mnt/other/b c.pdf'",
    ),
    "paths without quotes": (
        "convert: unable to open /srv/inbox/a.png: broken header",
        "convert: unable to open /srv/inbox/2026/11/other.png: broken header",
        "convert: unable to open ./x.png: broken header",
        "convert: unable to open ~/x.png: broken header",
        "convert: unable to open inbox/x.png: broken header",
        r"convert: unable to open C:\inbox\x.png: broken header",
    ),
    "addresses": (
        "HTTPError: 502 from https://api.example.com/v1/items/17?x=1",
        "HTTPError: 503 from https://api.example.com/v1/users/alice",
    ),
    "mail addresses": ("LookupError: no user anna@example.com", "LookupError: no user ben.b@mail.example.org"),
    "ids": (
        "RuntimeError: job 2f6c1d0e-4b1a-4c58-9a55-0d5c7e2f1a90 is locked",
        "RuntimeError: job 7A3E9F10-0000-4C58-9A55-0D5C7E2F1A91 is locked",
        "RuntimeError: job 9f86d081884c7d659a2feaa0c55ad015 is locked",
        "RuntimeError: job 01HF8Z3Q5V6X7Y8Z9A0B1C2D3E is locked",
        "RuntimeError: job 0x7f3a is locked",
    ),
    "numbers": (
        "ValueError: row 7 has 3 columns",
        "ValueError: row 1,234,567 has -12 columns",
        "ValueError: row 12345678 has 1.5e-7 columns",
        "ValueError: row .5 has +3 columns",
    ),
    "durations and sizes": (
        "timed out after 30s",
        "timed out after 1m 30s",
        "timed out after 250ms",
    ),
    "times and hosts": (
        "OSError: 10.0.0.7:5432 refused at 2026-11-17T09:10:38.123Z",
        "OSError: 192.168.1.20:5433 refused at 2025-01-02T03:04:05Z",
    ),
    "where it happened": (
        "ValueError: bad (at jobs.py:12 in convert)",
        "ValueError: bad (at jobs.py:90 in convert)",
        "ValueError: bad (at main.py:1 in start, jobs.py:90 in convert)",
    ),
    "only the first line": (
        "ValueError: bad header | at byte x | near y",
        "ValueError: bad header | other details",
        "ValueError: bad header\nsecond line",
        "ValueError:  bad   header",
    ),
    "the first and the last line of a command": (
        "convert exited with 1: reading 3 pages | page 1 | unknown font",
        "convert exited with 1: reading 7 pages | page 1 | page 2 | a warning | unknown font",
    ),
    "the end of a long output": (
        "convert exited with 1: …ading page 3 | unknown font",
        "convert exited with 1: …nothing of note here | page 4 | unknown font",
    ),
}

DIFFERENT = (
    "ValueError: bad header",
    "TypeError: bad header",
    "ValueError: bad footer",
    "ValueError: read/write failed",
    "ValueError: read or write failed",
    "ValueError: can't open it, can't close it",
    "ValueError: can't open it",
    "ConnectionError: https://api.example.com/x refused",
    "ConnectionError: https://db.example.com/x refused",
    "convert exited with 1: no space left",
    "convert exited with 2: no space left",
    "convert was killed by SIGSEGV",
    "convert was killed by SIGKILL",
    "python3 exited with 1: Traceback (most recent call last): | File 'a.py', line 4, in f | ValueError: bad header",
    "python3 exited with 1: Traceback (most recent call last): | File 'a.py', line 5, in f | OSError: database is down",
    "sh exited with 1: WARNING: config file missing | Error: invalid header",
    "sh exited with 1: WARNING: config file missing | Error: no space left",
    "the command was killed by signal 35: WARNING: config file missing | Error: no space left",
    "the command was killed by signal 35: WARNING: config file missing | Error: invalid header",
    "java exited with 1: Exception in thread main X: bad header | at Main.main(Main.java:5)",
    "java exited with 1: Exception in thread main X: no space left | at Main.main(Main.java:5)",
    f"sh exited with 1: {'a long warning ' * 100} | Error: invalid header",
    f"sh exited with 1: {'a long warning ' * 100} | Error: no space left",
    "crashed: the handler process was killed by SIGSEGV",
    "its worker died (no heartbeat for 45s or more)",
    "timed out after 30s",
    "file vanished: '/srv/a.pdf'",
    "deadline passed",
    "not a job: JSON is malformed: invalid character (byte 0)",
    "not a job: it has 17825793 bytes; at most 17825792 are decoded",
    "",
)

TRACE = """Traceback (most recent call last):
  File "/srv/app/jobs.py", line {line}, in convert
    return parse(data)
  File "/srv/app/{module}", line 7, in {name}
    return json.loads(data)
  File "/usr/lib/python3.12/json/__init__.py", line 346, in loads
    return _default_decoder.decode(s)
json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"""


@pytest.mark.parametrize("errors", SAME.values(), ids=SAME.keys())
def test_messages_of_one_cause_have_one_fingerprint(errors: tuple[str, ...]) -> None:
    assert len({fingerprint(error, "convert") for error in errors}) == 1, {wording(error) for error in errors}


def test_messages_of_different_causes_have_different_fingerprints() -> None:
    found: dict[str, list[str]] = {}
    for error in DIFFERENT:
        found.setdefault(fingerprint(error, "convert"), []).append(error)
    assert [errors for errors in found.values() if len(errors) > 1] == []


def test_it_is_twelve_hexadecimal_digits_which_never_change() -> None:
    assert re.fullmatch(r"[0-9a-f]{12}", fingerprint("\udcff not UTF-8"))
    assert LENGTH == 12
    # Records keep these digits: another value here would split the groups of every installation.
    assert fingerprint("ValueError: row 7 has 3 columns", "convert") == "118a7737c4f9"


def test_the_handler_is_part_of_it() -> None:
    error = "crashed: the handler process was killed by SIGSEGV"
    assert fingerprint(error, "thumbnail") != fingerprint(error, "ocr")


def test_the_name_of_the_jobs_own_file_is_not_part_of_it() -> None:
    first = fingerprint("ValueError: alice final.pdf is encrypted", "", "", "/srv/in box/alice final.pdf")
    assert first == fingerprint("ValueError: bob.pdf is encrypted", "", "", "/srv/in box/bob.pdf")
    assert first == fingerprint("ValueError: /srv/in box/c d.pdf is encrypted", "", "", "/srv/in box/c d.pdf")
    assert wording("a of b", "/x/a") == "a of b"  # a name this short is a word


def test_the_innermost_frame_is_that_of_the_users_code() -> None:
    trace = TRACE.format(line=12, module="parsing.py", name="parse")
    assert innermost_frame(trace) == "parsing:parse"
    installed = trace.replace("/usr/lib/python3.12/json", "/srv/app/.venv/lib/python3.12/site-packages/orjson")
    assert innermost_frame(installed) == "parsing:parse"
    assert innermost_frame(TRACE.format(line=1, module="formats/__init__.py", name="<lambda>")) == "formats:<lambda>"
    assert innermost_frame("") == innermost_frame("convert: bad file") == ""
    group = '  + Exception Group Traceback\n    | File "/srv/app/jobs.py", line 3, in run\n'
    assert innermost_frame(group) == "jobs:run"


def test_frames_tell_equal_messages_apart_and_lines_do_not() -> None:
    def of(line: int, name: str) -> str:
        return fingerprint("JSONDecodeError: Expecting value", "", TRACE.format(line=line, module="p.py", name=name))

    assert of(12, "parse") == of(90, "parse") != of(12, "read")
    assert fingerprint("ValueError: x (at a.py:1 in f)") != fingerprint("ValueError: x (at a.py:1 in g)")


def test_a_python_program_is_named_by_its_error_and_not_by_the_title_of_its_traceback() -> None:
    error = "python exited with 1: Traceback (most recent call last): | File 'a.py', line 4, in f | ValueError: row 7"
    assert wording(error) == "python exited with #: ValueError: row #"


def test_a_very_long_message_is_looked_at_in_linear_time() -> None:
    assert fingerprint("ValueError: " + "'\\" * 100_000) == fingerprint("ValueError: " + "'\\" * 90_000)
    assert wording("a" * 5_000) == "a" * 400
