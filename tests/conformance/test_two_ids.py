"""A job of another program with the key `id` twice: every broker and every reader means the same job, or none."""

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fileq.core.job import MAX_PARSED_BYTES, State, decode_or_none, raw_id
from fileq.core.settlement import complete
from fileq.testing.conformance.builders import burial, claims_of, drift, foreign, register, settle

IDS = st.sampled_from(["a", "b", "ü", "x" * 30, 'q"q', "back\\slash"])
SPELLINGS = st.sampled_from(['"id"', '"i\\u0064"'])
WRITTEN = st.sampled_from(
    [lambda id: json.dumps(id, ensure_ascii=False), json.dumps, lambda id: "5", lambda id: "null"]
)


@st.composite
def jobs_with_ids(draw: st.DrawFn) -> bytes:
    """The fields of a job in our order, and ids in other places too: before, between, behind, in the payload. Long ones
    too, of which Lua parses only an id at the beginning."""
    fields = json.loads(foreign("first"))
    fields["payload"] = draw(st.sampled_from([None, {"id": "inner"}, [{"id": "inner"}], "x" * MAX_PARSED_BYTES]))
    first = fields.pop("id")
    pairs = [('"id"', json.dumps(draw(st.sampled_from([first, "a", 'q"q']))))]
    pairs += [(json.dumps(name), json.dumps(value)) for name, value in fields.items()]
    for _ in range(draw(st.integers(0, 2))):
        pair = draw(SPELLINGS), draw(WRITTEN)(draw(IDS))
        pairs.insert(draw(st.integers(0, len(pairs))), pair)
    return ("{" + ",".join(f"{name}:{value}" for name, value in pairs) + "}").encode()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=jobs_with_ids())
def test_a_claim_and_its_record_are_of_the_same_job(harness, raw):
    """Each example ends its job, so that all examples can share one broker."""
    register(harness, "w1")
    harness.push_raw("low", raw)
    [claim] = claims_of(harness, "w1")
    assert claim.raw == raw
    assert claim.job == decode_or_none(raw), claim.defect  # as every other reader of these bytes decides
    if claim.job is None:
        settle(harness, burial(claim))
        assert claim.id == raw_id(raw)
        assert harness.broker.discard([(claim.id, raw)]) == [True]
    else:
        [record] = harness.broker.records([claim.job.id])
        assert record is not None
        assert (record.state, record.raw, record.slot) == (State.RUNNING, raw, "w1")
        settle(harness, complete(claim))
        [record] = harness.broker.records([claim.job.id])
        assert record.state is State.COMPLETED
    assert drift(harness) == 0
