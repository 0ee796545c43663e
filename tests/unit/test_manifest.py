"""Manifests: lists of files in each form that they can have."""

from __future__ import annotations

import pytest

from fileq.core.errors import ConfigError
from fileq.files.manifest import ManifestEntry, read_manifest

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
        ("[1", "list is not JSON"),
        ('{"path": "a"}\n{', "list, line 2 is not JSON"),
        ('[{"size": 3}]', "list, entry 1: Object missing required field `path`"),
        ('["a", "a", ""]', "list, entry 2: 'a' is listed twice\nlist, entry 3: path is ''; it must name a file"),
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
