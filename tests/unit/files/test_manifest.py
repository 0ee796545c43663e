"""Manifests: lists of files in each form that they can have."""

from __future__ import annotations

import tracemalloc

import pytest

from fileq.core.errors import ConfigError
from fileq.files.manifest import PROBLEMS_MAX, ManifestEntry, read_manifest

A, B = "a" * 64, "b" * 64
TWO = [ManifestEntry("a.csv", 3, A), ManifestEntry("in/b c.csv")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f'[{{"path": "a.csv", "size": 3, "sha256": "{A.upper()}"}}, {{"path": "in/b c.csv"}}]', TWO),
        ('["a.csv"]', [ManifestEntry("a.csv")]),
        (f'{{"path": "a.csv", "size": 3, "sha256": "{A}", "more": 1}}\n\n{{"path": "in/b c.csv"}}\n', TWO),
        (f"path,size,sha256\na.csv,3,{A}\nin/b c.csv,,\n", TWO),
        (f'\ufeffsha256;x,"Path", size\n{A},"a,b.csv",3\n'.replace(";x", ""), [ManifestEntry("a,b.csv", 3, A)]),
        (f"{A}  a.csv\r\n{B} *in/b.csv\n", [ManifestEntry("a.csv", None, A), ManifestEntry("in/b.csv", None, B)]),
        (f"\\{A}  a\\nb\\\\c.csv\n", [ManifestEntry("a\nb\\c.csv", None, A)]),
        ("a.csv\n\nin/b c.csv\n", [ManifestEntry("a.csv"), ManifestEntry("in/b c.csv")]),
        ("", []),
        ("[]", []),
    ],
)
def test_the_form_is_recognized(text: str, expected: list[ManifestEntry]) -> None:
    assert read_manifest(text.encode(), "list") == expected


def test_a_name_that_is_not_utf8_is_kept() -> None:
    assert read_manifest(b"\xff.csv\n", "list") == [ManifestEntry("\udcff.csv")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('["a"', "list is not JSON"),
        ("[1]", "list, entry 1: Expected `object`, got `int`"),
        ('[{"path": "a"}, "b"]', "list, entry 2: Expected `object`, got `str`"),
        ('{"path": "a"}\n{', "list, line 2 is not JSON"),
        ('[{"size": 3}]', "list, entry 1: Object missing required field `path`"),
        ('["a", "a", ""]', "list, entry 2: 'a' is listed twice\nlist, entry 3: path is ''; it must name a file"),
        ('[{"path": "a", "size": 1, "size": 2}]', "list, entry 1: 'size' is given twice"),
        ('[{"path": "a", "size": -1}]', "list, entry 1: size is -1; it must be at least 0"),
        ('[{"path": "a", "sha256": "ab"}]', "list, entry 1: sha256 is 'ab'; it must have 64 hex digits"),
        ("path,size\na,many\n", "list, line 2: size is 'many'; it must be a number of bytes"),
        (f"{A}  a\nnothing\n", "list, line 2: 'nothing' is not a line of sha256sum"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_manifest(text.encode(), "list")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "text",
    ["x" * 200_000, "path,size\na," + "9" * 5000, 'path\n"' + "y" * 200_000 + '"', "[" * 100_000, '["\\ud800"]'],
    ids=["long line", "digits", "long column", "nested", "surrogate"],
)
def test_a_hostile_list_is_a_clear_error(text: str) -> None:
    """H5: what a manifest holds is up to its sender; any other error would stop the producer for all deliveries."""
    with pytest.raises(ConfigError) as caught:
        read_manifest(text.encode(), "list")
    assert len(str(caught.value)) < 1000


def test_an_error_names_a_bounded_number_of_lines() -> None:
    with pytest.raises(ConfigError) as caught:
        read_manifest(b"path,size\n" + b"a,x\n" * 5000, "list")
    assert len(caught.value.problems) == PROBLEMS_MAX + 1


@pytest.mark.parametrize("text", [b"a\n" * 1_000_002, b"\n" * 1_000_002, b"[" + b"0," * 8_000_001 + b"0]"])
def test_a_list_of_too_many_entries_is_refused_before_anything_is_made_of_it(text: bytes) -> None:
    """H5: 64 MB of the shortest entries filled gigabytes of the producer's memory."""
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match="at most 1,000,000"):
            read_manifest(text, "list")
        assert tracemalloc.get_traced_memory()[1] < 3 * len(text)
    finally:
        tracemalloc.stop()


MANY = 300_000


@pytest.mark.parametrize(
    "text",
    [
        b"path" + b",ab" * MANY + b"\na\n",
        b"path\n" + b"a," * MANY,
        b"path\n" + (b"x," * 20 + b'"\n",') * (MANY // 20),
        b'{"path":"a","x":[' + b"{}," * MANY + b"{}]}\n",
        b'[{"path":"a","x":[' + b"{}," * MANY + b"{}]}]",
        b"[" + (b'{"path":"a","x":' * 40 + b"0" + b"}" * 40 + b",") * (MANY // 100) + b"0]",
        b'[{"path":"a",' + b",".join(b'"%x":0' % i for i in range(MANY)) + b"}]",
        b"[" + b",".join(b'{"path":"%x","b%x":0}' % (i, i) for i in range(MANY)) + b"]",
        b'[{"path":"a"},' + b"[]," * MANY + b"[]]",
    ],
    ids=["header", "row", "row of many lines", "line", "array", "nested", "names", "names of entries", "mixed"],
)
def test_what_is_unknown_in_a_list_makes_no_objects(text: bytes) -> None:
    """S2: a list of 64 MB with millions of columns, or of objects under unknown names, took 3.4 GB."""
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError) as caught:
            read_manifest(text, "list")
        assert len(str(caught.value)) < 1000
        assert tracemalloc.get_traced_memory()[1] < 6 * len(text)
    finally:
        tracemalloc.stop()


def test_a_name_may_have_any_character_that_is_no_new_line() -> None:
    assert read_manifest("a\u2028b\r\nc\x0bd\n".encode(), "list") == [
        ManifestEntry("a\u2028b"),
        ManifestEntry("c\x0bd"),
    ]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ('[{"path": "a", "sha265": "0"}]', "list, entry 1: 'sha265' is unknown; did you mean 'sha256'?"),
        ('{"path": "a"}\n{"path": "b", "Size": 1}', "list, entry 2: 'Size' is unknown; did you mean 'size'?"),
        ("path,sha_256\na,0\n", "list, line 1: 'sha_256' is unknown; did you mean 'sha256'?"),
    ],
)
def test_a_misspelt_column_is_refused_because_nothing_would_be_compared(text: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_manifest(text.encode(), "list")
    assert caught.value.problems == (meant,)


def test_other_columns_of_a_list_are_ignored() -> None:
    assert read_manifest(b'[{"path": "a", "size": 1, "sha512": "0", "rows": 7}]', "list") == [ManifestEntry("a", 1)]
    assert read_manifest(b"path,size,rows,etag\na,1,7,x\n", "list") == [ManifestEntry("a", 1)]
