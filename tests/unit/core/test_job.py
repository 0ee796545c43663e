"""The job's JSON: eight fields first, unknown fields kept, paths that are not UTF-8."""

from __future__ import annotations

import json
import re
import uuid
from datetime import UTC, datetime
from importlib.resources import files

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fileq.core.errors import JobError, Undecodable
from fileq.core.job import (
    FIELDS,
    MAX_DECODED_BYTES,
    MAX_DECODED_NESTING,
    MAX_PARSED_BYTES,
    Job,
    State,
    attempt_of,
    check_content,
    checked_id,
    decode,
    encode,
    file_job,
    is_nested_deeper,
    new_id,
    parse_time,
    raw_id,
    rfc3339,
    rfc3339_ms,
    typed_job,
)

NOW = datetime(2026, 11, 16, 3, 25, 0, 123456, UTC)
EIGHT = ["id", "filepath", "filesize", "priority", "retries", "creation_time", "trace_id", "span_id"]

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
optional = {
    "type": text,
    "payload": json_values.filter(lambda value: value is not None),
    "max_retries": st.integers(0, 99),
    "timeout": st.floats(0.001, 1e6),
    "process_at": text,
    "deadline": text,
    "recoveries": st.integers(1, 99),
    "signature": text,
    "batch_id": text,
    "error": text,
    "failed_at": text,
}
unknown = st.dictionaries(text.filter(lambda name: name not in FIELDS), json_values, max_size=3)
required = st.fixed_dictionaries(
    {
        "id": text.filter(bool),
        "filepath": text,
        "filesize": st.integers(0, 2**62),
        "priority": text,
        "retries": st.integers(0, 99),
        "creation_time": text,
        "trace_id": text,
        "span_id": text,
    },
)
jobs = st.builds(lambda a, b, c: {**a, **b, **c}, required, st.fixed_dictionaries({}, optional=optional), unknown)


def a_job(**changes: object) -> Job:
    return file_job(b"/data/a.pdf", size=3, priority="low", now=NOW, id="one").but(**changes)


def test_a_plain_job_has_exactly_the_eight_fields_in_order() -> None:
    assert list(json.loads(encode(a_job()))) == EIGHT


def test_the_number_of_an_attempt_can_be_kept_in_the_job_whatever_its_counters_are() -> None:
    most = 2**31 - 1
    check_content(a_job(attempts_before=attempt_of(a_job(retries=most, recoveries=most, attempts_before=most))))


def test_an_optional_field_follows_the_eight_once_it_is_set() -> None:
    raw = encode(a_job(max_retries=0, recoveries=1, batch_id="b"))
    assert list(json.loads(raw)) == [*EIGHT, "max_retries", "recoveries", "batch_id"]


@given(jobs)
def test_decoding_and_encoding_again_keeps_every_field_of_any_job(fields: dict[str, object]) -> None:
    again = json.loads(encode(decode(json.dumps(fields).encode())))
    assert again == fields
    assert list(again)[:8] == EIGHT


@given(jobs)
def test_encoding_a_decoded_job_again_gives_the_same_bytes(fields: dict[str, object]) -> None:
    raw = encode(decode(json.dumps(fields).encode()))
    assert encode(decode(raw)) == raw
    assert decode(raw) == decode(json.dumps(fields).encode())


def test_unknown_fields_keep_their_bytes_when_the_job_changes() -> None:
    raw = encode(a_job())[:-1] + b',"later":{"n":1.10,"big":123456789012345678901234567890,"list":[ ]}}'
    changed = encode(decode(raw).but(retries=2, error="boom"))
    assert changed.endswith(b',"later":{"n":1.10,"big":123456789012345678901234567890,"list":[ ]}}')
    assert json.loads(changed)["retries"] == 2


def test_a_field_named_like_the_internal_one_for_unknown_fields_is_kept() -> None:
    raw = encode(a_job())[:-1] + b',"\x7f":{"a":1}}'
    assert json.loads(encode(decode(raw)))["\x7f"] == {"a": 1}


def test_a_payload_keeps_its_bytes_when_the_job_changes() -> None:
    raw = encode(a_job())[:-1] + b',"type":"t","payload":{"n":1.10,"empty":[ ]}}'
    job = decode(raw)
    assert encode(job.but(retries=1)).endswith(b'"payload":{"n":1.10,"empty":[ ]}}')
    assert job.payload_value == {"n": 1.1, "empty": []}


@given(jobs, st.sets(st.sampled_from(EIGHT[2:])))
def test_what_another_program_leaves_out_is_filled_in(fields: dict[str, object], left_out: set[str]) -> None:
    given = {name: value for name, value in fields.items() if name not in left_out}
    again = json.loads(encode(decode(json.dumps(given).encode())))
    filled = {"filesize": 0, "priority": "low", "retries": 0, "creation_time": "", "trace_id": "", "span_id": ""}
    assert again == {**filled, **given}
    assert list(again)[:8] == EIGHT


@pytest.mark.parametrize(
    "raw", [b'{"id":"a"}', b'{"id":"a","type":null}', b'{"id":"a","filepath_b64":"YQ==","payload":{"type":"t"}}']
)
def test_a_job_has_a_path_or_a_type(raw: bytes) -> None:
    with pytest.raises(Undecodable, match="not a job: it has neither filepath nor type"):
        decode(raw)


@pytest.mark.parametrize("name", [b"/data/\xff\xfe.pdf", b"/data/caf\xe9", b"/data/new\nline", b"/data/'\"$(x) -rf"])
def test_any_path_is_the_same_after_encoding_and_decoding(name: bytes) -> None:
    job = decode(encode(file_job(name, size=0, priority="low", now=NOW)))
    assert job.path == name


def test_only_a_path_that_is_not_utf8_sets_filepath_b64() -> None:
    odd = json.loads(encode(file_job(b"/data/\xff", size=0, priority="low", now=NOW)))
    assert (odd["filepath"], odd["filepath_b64"]) == ("/data/\\xff", "L2RhdGEv/w==")
    assert "filepath_b64" not in json.loads(encode(file_job("/data/é".encode(), size=0, priority="low", now=NOW)))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'"text"',
        b"{",
        b"{}",
        b'{"id":"x"}',
        encode(a_job()).replace(b'"retries":0', b'"retries":"0"'),
        encode(a_job()).replace(b'"retries":0', b'"retries":-1'),
        encode(a_job()).replace(b'"retries":0', b'"retries":2147483648'),
        encode(a_job()).replace(b'"retries":0', b'"retries":18446744073709551615'),
        encode(a_job())[:-1] + b',"max_retries":-1}',
        encode(a_job())[:-1] + b',"recoveries":18446744073709551615}',
        encode(a_job())[:-1] + b',"timeout":1e300}',
        encode(a_job())[:-1] + b',"timeout":-1}',
        re.sub(rb'"filesize":\d+', b'"filesize":9223372036854775808', encode(a_job())),
        re.sub(rb'"filesize":\d+', b'"filesize":-1', encode(a_job())),
        encode(a_job()).replace(b'"id":"one"', b'"id":""'),
        encode(a_job()).replace(b"/data", b"/d\xffta"),
        encode(a_job()).replace(b"/data", b"/d\\u0000ta"),
        encode(a_job()).replace(b'"id":"one"', b'"id":"\\ud800"'),
        encode(a_job())[:-1] + b',"filepath_b64":"not base64!"}',
        b'{"a":' * 100_000,
    ],
)
def test_bytes_that_are_not_a_job_raise_undecodable_and_nothing_else(raw: bytes) -> None:
    with pytest.raises(Undecodable, match="not a job"):
        decode(raw)


def nested(levels: int) -> bytes:
    return b'{"a":[' * (levels // 2) + b"1" + b"]}" * (levels // 2)


def test_how_deep_a_job_may_be_does_not_depend_on_the_stack_of_its_reader() -> None:
    """A7: bytes nested 983 deep were a job for one reader and none for another."""
    deepest = encode(a_job())[:-1] + b',"payload":' + nested(MAX_DECODED_NESTING - 2) + b',"x":[]}'

    def with_less_stack(raw: bytes, frames: int) -> Job:
        return with_less_stack(raw, frames - 1) if frames else decode(raw)

    assert with_less_stack(deepest, 500) == decode(deepest)
    for field in (b"payload", b"later", b"tags"):
        for levels in (MAX_DECODED_NESTING, 900):
            with pytest.raises(Undecodable, match="more than 80 nested lists and objects"):
                decode(encode(a_job())[:-1] + b',"%s":%s}' % (field, nested(levels)))


def depth_of(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


bracketed = st.text(st.sampled_from('[]{}"\\a'), max_size=8)


@given(
    st.recursive(
        bracketed,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(bracketed, inner, max_size=4),
        max_leaves=20,
    )
)
def test_the_nesting_is_that_of_the_value_whatever_its_texts_contain(value: object) -> None:
    raw = json.dumps(value).encode()
    depth = depth_of(value)
    assert not is_nested_deeper(raw, depth)
    assert depth == 0 or is_nested_deeper(raw, depth - 1)


@given(jobs)
def test_what_enters_a_broker_can_be_decoded(fields: dict[str, object]) -> None:
    """A1: a job that passes the check of new jobs is never refused by the decoder."""
    check_content(decode(json.dumps(fields).encode()))


@pytest.mark.parametrize(
    ("field", "values"),
    {
        "timeout": (-1.0, 3.16e9, float("nan")),
        "max_retries": (-1, 2**31),
        "retries": (-1, 2**31),
        "recoveries": (-1, 2**31),
        "attempts_before": (-1, 2**31),
        "filesize": (-1, 2**63),
        "file_inode": (-1, 2**63),
        "id": ("",),
        "filepath": ("/a\0b",),
        "filepath_b64": ("?",),
        "payload": (msgspec.Raw(nested(66)),),
        "unknown": ({"later": msgspec.Raw(nested(66))},),
    }.items(),
)
def test_what_could_not_be_decoded_does_not_enter_a_broker(field: str, values: tuple[object, ...]) -> None:
    """A1: a timeout of 2e9 was enqueued, and lost at its claim."""
    for value in values:
        with pytest.raises(JobError, match=r"one|''"):
            check_content(a_job(**{field: value}))


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_raise_undecodable(raw: bytes) -> None:
    try:
        decode(raw)
    except Undecodable:
        assert raw_id(raw).startswith("raw-")


def test_fields_may_be_in_any_order_with_blanks_between() -> None:
    fields = json.loads(encode(a_job()))
    foreign = json.dumps(dict(reversed(fields.items())), indent=2).encode()
    assert decode(foreign) == a_job()


@pytest.mark.parametrize(
    "id",
    [
        "",
        "a b",
        'a"b',
        "a\\b",
        "a\nb",
        "a\n",
        "x" * 201,
        "\x7f",
        "--output=/tmp/x",
        "-",
        ".",
        "..",
        "x/y",
        "日本",
        "a%2F",
    ],
)
def test_an_id_that_is_unsafe_in_a_key_an_address_a_terminal_or_a_command_is_refused(id: str) -> None:
    """A2, A9: an id was an option of the command that got it, or had no address in the API."""
    with pytest.raises(JobError, match="can't be used"):
        checked_id(id)


@pytest.mark.parametrize("id", ["a", "_x", "7", "order:2026-11@eu+1=x.y_z", "x" * 200])
def test_an_id_may_have_what_names_usually_have(id: str) -> None:
    assert checked_id(id) == id


def test_a_typed_job_has_a_payload_and_no_file() -> None:
    job = typed_job("mail", {"to": "a"}, priority="high", now=NOW, id="chosen")
    assert (job.id, job.filepath, job.type, job.payload_value) == ("chosen", "", "mail", {"to": "a"})
    assert typed_job("ping", None, priority="low", now=NOW).payload_value is None


def test_states_are_found_by_the_words_of_operators() -> None:
    assert State.from_filter("processing") is State.RUNNING
    assert State.from_filter("failed") is State.RETRYING
    assert State.from_filter("deferred") is State.DEFERRED
    assert State.from_filter("dead") is State.DEAD


def test_times_are_written_as_rfc3339_in_utc_and_read_leniently() -> None:
    assert rfc3339(NOW) == "2026-11-16T03:25:00.123Z"
    assert parse_time("2026-11-16T04:25:00.123456789+01:00") == NOW
    assert parse_time("2026-11-16T03:25:00") == NOW.replace(microsecond=0)
    assert parse_time("yesterday") is None


def test_a_time_outside_the_years_of_rfc3339_is_its_first_or_last_one() -> None:
    """A6: the time of a file after the year 9999 could not be written."""
    assert [rfc3339_ms(sign * 10**30)[:19] for sign in (-1, 1)] == ["0001-01-01T00:00:00", "9999-12-31T23:59:59"]
    for text, time in (("0001-01-01T00:00:00+10:00", datetime.min), ("9999-12-31T23:00:00-10:00", datetime.max)):
        assert parse_time(text) == time.replace(tzinfo=UTC)


def test_a_job_cannot_be_changed_in_place() -> None:
    with pytest.raises(AttributeError):
        a_job().retries = 3  # type: ignore[misc]
    assert isinstance(a_job(), msgspec.Struct)


def test_the_scripts_of_redis_parse_no_more_bytes_than_are_decoded() -> None:
    script = files("fileq.brokers.redis") / "lua" / "prelude" / "jobs.lua"
    assert f"local MAX_DECODED_BYTES = {MAX_DECODED_BYTES} " in script.read_text()
    assert f"local MAX_PARSED_BYTES = {MAX_PARSED_BYTES} " in script.read_text()


def test_a_new_id_is_a_random_uuid_of_version_4() -> None:
    ids = {new_id() for _ in range(1000)}
    assert len(ids) == 1000
    found = [uuid.UUID(id) for id in ids]
    assert {(id.version, id.variant) for id in found} == {(4, uuid.RFC_4122)}
    assert {str(id) for id in found} == ids
