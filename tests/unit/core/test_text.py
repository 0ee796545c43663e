"""Text that is safe to print, and JSON that people hand in."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fileq.core.text import repeated_key

values = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(max_size=5), st.sampled_from(['"', "\\", "{", "}", ":", '\\":'])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("document", "key"),
    [
        ('{"a": 1, "a": 2}', "a"),
        ('{"a": {"b": 1, "c": [{"b": 1}]}, "b": 2}', ""),
        ('[{"x": [], "y": {"z": 0, "z" : 1}}]', "z"),
        ('{"\\u0061": 1, "a": 2}', "a"),
        ('{"a": "{\\"a\\": 1", "b": "}"}', ""),
        ("[1, 2]", ""),
    ],
)
def test_a_key_that_an_object_has_twice_is_found(document: str, key: str) -> None:
    json.loads(document)
    assert repeated_key(document.encode()) == key


@given(values)
def test_what_an_encoder_writes_has_no_key_twice(value: object) -> None:
    assert repeated_key(json.dumps(value).encode()) == ""
    assert repeated_key(json.dumps([{"k": value}], ensure_ascii=False).encode(errors="replace")) == ""
    assert repeated_key(b'{"k": ' + json.dumps(value).encode() + b', "k": 1}') == "k"
