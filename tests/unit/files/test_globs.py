"""Which paths the include and exclude globs match."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from wcmatch import glob

from fileq.core.errors import ConfigError
from fileq.files.globs import LONGEST_GLOB, FileFilter, Globs, exact_glob, has_literal_brace
from tests.support.regex_steps import LONG, SHORT, Steps, worst_attack

# The reference. Its matcher backtracks, so fileq has its own.
FLAGS = glob.GLOBSTAR | glob.DOTGLOB | glob.FORCEUNIX | glob.BRACE
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


@pytest.mark.parametrize("pattern", ["*.{pdf,PDF", "*.{pdf}", "pdf}", "{a,b}{", r"\\{a", "[a]{b"])
def test_a_brace_that_lists_no_alternatives_is_found(pattern: str):
    assert has_literal_brace(pattern)


@pytest.mark.parametrize(
    "pattern", ["*.pdf", "*.{pdf,PDF}", "{1..9}", "{a,{b,c}}", r"\{a\}", "[{}]a", exact_glob("{a}")]
)
def test_a_brace_that_lists_alternatives_or_is_marked_is_no_literal_one(pattern: str):
    assert not has_literal_brace(pattern)


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


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("{1..999999}", "stand for more than 1,000 globs"),
        ("{a,b}" * 10, "stand for more than 1,000 globs"),
        ("{" * 3000, "too many braces within braces"),
        ("a" * (LONGEST_GLOB + 1), "more than 10,000 characters"),
        ("a" * 100 + "{1..200}", "more than 10,000 characters"),
        ("*/" * 20 + "{1..60}", "more than 1,000 wildcards"),
        ("[ab]?" * 501, "more than 1,000 wildcards"),
    ],
)
def test_a_glob_that_stands_for_too_much_is_a_configuration_error(pattern, problem):
    with pytest.raises(ConfigError, match=problem) as refused:
        Globs([pattern])
    assert len(str(refused.value)) < 300


def test_a_path_that_no_system_call_takes_matches_no_wildcard_of_paths():
    assert matches("**/a/*.pdf", "a/" * 2000 + "x.pdf")
    assert not matches("**/a/*.pdf", "a/" * 2100 + "x.pdf")


def expressions(pattern):
    globs = Globs([pattern])
    return [Steps(one.pattern, one.flags) for one in (globs._name, globs._path) if one is not None]


EVIL = [
    "**/a/**/a/**/a/**/a/**/a/**/b",
    "**/*a*/**/*a*/**/*a*/b",
    "**/a/a/a/**/a/a/b",
    "a/**/[ab]/**/?/*.pdf",
    "**/**/**/**/b",
    "*a*a*a*a*a*a*b",
    "**/*a*a*a*b",
    "?*?*?*?*b",
    "{a,a*,*a}/**/{b,c}*/**",
    "**/../**/./**/b",
    "a/**",
    "*/*/*/*/*/b/",
]


@pytest.mark.parametrize("pattern", EVIL)
def test_the_steps_of_a_glob_grow_like_the_path(pattern):
    """H1: six `**/` on a deep path backtracked for more than 35 s."""
    for steps in expressions(pattern):
        assert worst_attack(steps, "fullmatch") is None
        for piece in ("a/", "a", "aa/", "/", "../", "./", "ab/", "a/b/", "b/a/a/"):
            for end in ("", "x", "/", "b", "\n"):
                taken = []
                for length in (SHORT, LONG):
                    steps.most = 0
                    steps.run(piece * (length // len(piece)) + end, "fullmatch")
                    taken.append(steps.taken)
                assert taken[1] < 6 * taken[0] + 100, (piece, end, taken)


def test_the_reference_shows_what_the_steps_are_counted_for():
    [old], _ = glob.translate("**/a/**/a/**/b", flags=FLAGS)
    assert worst_attack(Steps(old), "fullmatch") is not None


names = st.text("ab.x*-]\n", min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))
paths = st.lists(names, min_size=1, max_size=4).map("/".join)
pieces = st.sampled_from(
    [
        *("**", "*", "?", "a", "b", ".", "x", "-", "\n", "*.x", "a*", r"\*", "\\", r"\[", "!", "$", ","),
        *(
            "[ab]",
            "[!a]",
            "[^.]",
            "[a-b]",
            "[",
            "]",
            "[]a]",
            "[!]",
            "[z-a]",
            "[!z-a]",
            "[--b]",
            "[a-b-]",
            r"[\]]",
            "[+-a]",
        ),
        *("[[:alpha:]", "[[:alpha:]]", "[[:punct:]-a]", "[a-[:digit:]]", "[[:nothing:]]"),
        *("{a,b}", "{a,.b}", "{a,{b,-}}", "{1..3}", "{a..b}", "{", "}", "{a/b,x}"),
    ]
)
parts = st.lists(pieces, min_size=1, max_size=3).map("".join)
patterns = st.lists(st.one_of(parts, st.just("**")), min_size=1, max_size=4).map("/".join)


def reference(pattern: str, path: str) -> bool:
    """As wcmatch says. It takes the end of a text to be before a final newline, so newlines are replaced."""
    return glob.globmatch(path.replace("\n", "\0"), pattern.replace("\n", "\0"), flags=FLAGS)


def is_comparable(pattern: str) -> bool:
    """Not with an escaped slash, which is part of a row of slashes here, or `**/` and an escape of nothing, or if it
    stands for too many globs."""
    try:
        Globs([pattern])
    except ConfigError:
        return False
    return "\\/" not in pattern and not pattern.endswith("/\\")


@given(patterns, paths)
@example("**/*", "a")
@example("**/*.x", ".x")
@example("**/.x", "a/.x")
@example("**/**", "a/b")
@example("a/**", "a/b/x")
@example("**/{a,b}", "b")
@example("**/[[:alpha:]/]", "x/[[:alpha:]/]")
def test_every_match_agrees_with_wcmatch(pattern, path):
    assume(is_comparable(pattern))
    assert matches(pattern, path) == reference(pattern, path)


slashes = st.sampled_from(["/", "/", "//"])
odd_names = st.sampled_from(["a", "b", ".", "..", ".a", "a.", "..."])
odd_paths = st.builds(
    lambda start, rows, name: start + "".join(map("".join, rows)) + name,
    st.sampled_from(["", "", "/"]),
    st.lists(st.tuples(odd_names, slashes), max_size=4),
    odd_names,
)
odd_parts = st.sampled_from(["**", "**", "*", "?", "a", "b", ".", "..", "[!a]", "a*", "*a*", ".a"])
odd_patterns = st.builds(
    lambda start, names: start + "/".join(names),
    st.sampled_from(["", "/"]),
    st.lists(odd_parts, min_size=1, max_size=6),
)


@given(odd_patterns, odd_paths)
@example("**/../**/b", "a/../../b")
@example("/**/a", "//a")
def test_names_of_dots_and_rows_of_slashes_agree_with_wcmatch(pattern, path):
    is_decided_by_name = pattern.startswith("**/") and "/" not in pattern[3:]
    assume(not is_decided_by_name)
    assert matches(pattern, path) == reference(pattern, path)


@pytest.mark.parametrize("pattern", ["a/", "a//", "a/**/", "/a/", "*/", "**/a/"])
@pytest.mark.parametrize("path", ["a", "a/", "a//", "/a/", "a/b", "a/b/", "x/a/", "x/a"])
def test_a_slash_at_the_end_agrees_with_wcmatch(pattern, path):
    assert matches(pattern, path) == reference(pattern, path)


@pytest.mark.parametrize("pattern", [".*", "..*", ".?", ".[.]", "*", "**/.*/x"])
def test_only_a_name_of_dots_matches_one(pattern):
    assert not matches(pattern, "..")
    assert not matches(pattern, "../x")
    assert matches("..", "..")
    assert matches("../*", "../x")


@given(paths)
def test_an_exact_glob_matches_its_path_only(path):
    assert matches(exact_glob(path), path)
    assert not matches(exact_glob(path), f"{path}x")
    assert not matches(exact_glob(path), f"x/{path}")


@given(st.lists(patterns, min_size=1, max_size=4), paths)
def test_several_patterns_match_if_one_of_them_does(some, path):
    assume(all(map(is_comparable, some)))
    assert Globs(some).match(*split(path)) == any(matches(pattern, path) for pattern in some)


@given(st.lists(patterns, max_size=3), paths)
def test_every_file_below_a_directory_that_is_not_entered_is_excluded(exclude, path):
    assume(all(map(is_comparable, exclude)))
    files = FileFilter(["**/*"], exclude)
    above = path.split("/")[:-1]
    if not all(files.enters("".join(f"{name}/" for name in above[:n]), name) for n, name in enumerate(above)):
        assert not takes(files, path)
