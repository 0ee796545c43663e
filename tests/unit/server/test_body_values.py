"""How many values a body has, before any of them becomes an object."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fileq.server import limits
from fileq.server.limits import VALUES_OF_ONE, values_of

JSON = st.recursive(
    st.none() | st.integers(-99, 99) | st.text(alphabet='"\\\\[]{},:a\n'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='"\\\\[{,'), inner, max_size=4),
)


def counted(value: Any) -> int:
    """Lists, objects, and the commas between what is in them."""
    if not isinstance(value, list | dict):
        return 0
    inner = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(0, len(inner) - 1) + sum(map(counted, inner))


@given(JSON)
def test_signs_in_texts_are_no_values(value: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "VALUES_FREE", -1)
        assert values_of(msgspec.json.encode(value)) == counted(value)


def test_a_long_text_with_commas_has_few_values() -> None:
    assert values_of(msgspec.json.encode({"csv": "1,2,[3],{4}," * 200_000, "n": 1})) == 2


@pytest.mark.parametrize("raw", [b"[{}," * VALUES_OF_ONE, b"[" * (VALUES_OF_ONE + 1)])
def test_the_count_ends_above_the_limit(raw: bytes) -> None:
    assert VALUES_OF_ONE < values_of(raw) <= len(raw)


@pytest.mark.parametrize("raw", [b'"' * 30_000 + b"," * 20_000, b'"' + b"," * 20_000, b'"' + b"\\" * 20_001])
def test_what_is_no_json_is_counted_too(raw: bytes) -> None:
    assert 0 <= values_of(raw) <= len(raw)
