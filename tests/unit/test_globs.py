"""Which paths the include and exclude globs match."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from wcmatch import glob

from fileq.core.errors import ConfigError
from fileq.files.globs import FLAGS, FileFilter, Globs

DEFAULT = FileFilter(["**/*"], ["**/*.tmp", "**/.DS_Store"])


def split(path: str) -> tuple[str, str]:
    prefix, slash, name = path.rpartition("/")
    return prefix + slash, name


def matches(pattern: str, path: str) -> bool:
    return Globs([pattern]).match(*split(path))


def takes(files: FileFilter, path: str) -> bool:
    return files.takes(*split(path))


@pytest.mark.parametrize("path", ["x.tmp", "a/x.tmp", "a/b/c/x.tmp", ".tmp", "a/.tmp", ".DS_Store", "a/b/.DS_Store"])
def test_a_name_excluded_in_any_directory_is_excluded_at_the_top_too(path):
    assert not takes(DEFAULT, path)


@pytest.mark.parametrize(
    "path", ["a.pdf", "a/b.pdf", ".hidden", ".hidden/x", "a/.x", "tmp", "x.tmp.gz", "xtmp", "DS_Store", "x.DS_Store"]
)
def test_all_other_names_are_included_even_with_a_leading_dot(path):
    assert takes(DEFAULT, path)


@pytest.mark.parametrize("name", ["a\nb", "\n", "a\n", ".\n", "..\n", "x.tmp\n", "\n.tmp\n"])
def test_a_newline_in_a_name_matches_like_any_other_character(name):
    assert takes(DEFAULT, name)
    assert matches("*", name)
    assert matches("**/[!q]*", name)
    assert not matches("*.tmp", name)
    assert matches(f"dir{name}/*", f"dir{name}/x")
    assert not matches("dir/*", f"dir{name}/x")


def test_a_suffix_after_a_newline_is_found():
    assert not takes(DEFAULT, "a\nb.tmp")


def test_bytes_that_are_not_utf8_match_as_surrogate_escapes():
    assert takes(DEFAULT, b"\xff".decode("utf-8", "surrogateescape"))
    assert matches("**/?.pdf", b"\xff.pdf".decode("utf-8", "surrogateescape"))


def test_braces_list_alternatives():
    files = FileFilter(["**/*.{pdf,docx}", "{in,out}/*"], [])
    assert [p for p in ("a.pdf", "x/a.docx", "a.txt", "in/a", "out/a", "else/a", "in/x/a") if takes(files, p)] == [
        *("a.pdf", "x/a.docx", "in/a", "out/a")
    ]


def test_a_pattern_without_two_stars_matches_at_the_top_only():
    assert matches("*.pdf", "a.pdf")
    assert not matches("*.pdf", "x/a.pdf")


def test_a_pattern_may_be_given_for_the_top_and_for_every_directory():
    globs = Globs(["*.pdf", "**/*.pdf"])
    assert globs.match("", "a.pdf")
    assert globs.match("x/", "a.pdf")


@pytest.mark.parametrize("pattern", ["cache/**", "cache/**/*", "**/cache/**", "{cache,old}/**"])
def test_a_directory_whose_whole_content_is_excluded_is_not_entered(pattern):
    files = FileFilter(["**/*"], [pattern])
    assert not files.enters("", "cache")
    assert files.enters("", "cached")
    assert files.enters("", "x")
    assert not takes(files, "cache/a")
    assert not takes(files, "cache/deep/a")


@pytest.mark.parametrize("pattern", ["cache/*", "cache/**/*.tmp", "**/*.tmp", "cache"])
def test_a_directory_is_entered_if_something_in_it_may_be_included(pattern):
    assert FileFilter(["**/*"], [pattern]).enters("", "cache")


def test_an_exclude_with_a_path_closes_only_the_directory_on_that_path():
    files = FileFilter(["**/*"], ["a/cache/**"])
    assert files.enters("", "cache")
    assert not files.enters("a/", "cache")


def test_a_glob_that_cannot_be_compiled_is_a_configuration_error(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise ValueError("too many")

    monkeypatch.setattr(glob, "translate", refuse)
    with pytest.raises(ConfigError, match=r"\*\*/a/\* can't be read: too many"):
        Globs(["**/a/*"])


names = st.text("ab.x*-", min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))
paths = st.lists(names, min_size=1, max_size=4).map("/".join)
pieces = st.sampled_from(
    ["**", "*", "?", "a", "b", ".", "x", "-", "[ab]", "[!a]", "*.x", "a*", "{a,b}", "{a,.b}", r"\*"]
)
parts = st.lists(pieces, min_size=1, max_size=3).map("".join)
patterns = st.lists(st.one_of(parts, st.just("**")), min_size=1, max_size=4).map("/".join)


@given(patterns, paths)
@example("**/*", "a")
@example("**/*.x", ".x")
@example("**/.x", "a/.x")
@example("**/**", "a/b")
@example("a/**", "a/b/x")
@example("**/{a,b}", "b")
def test_every_match_agrees_with_wcmatch(pattern, path):
    assert matches(pattern, path) == glob.globmatch(path, pattern, flags=FLAGS)


@given(st.lists(patterns, min_size=1, max_size=4), paths)
def test_several_patterns_match_if_one_of_them_does(some, path):
    assert Globs(some).match(*split(path)) == any(matches(pattern, path) for pattern in some)


@given(st.lists(patterns, max_size=3), paths)
def test_every_file_below_a_directory_that_is_not_entered_is_excluded(exclude, path):
    files = FileFilter(["**/*"], exclude)
    above = path.split("/")[:-1]
    if not all(files.enters("".join(f"{name}/" for name in above[:n]), name) for n, name in enumerate(above)):
        assert not takes(files, path)
