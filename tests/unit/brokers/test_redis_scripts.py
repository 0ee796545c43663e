"""How the Lua scripts are put together: each with what it uses of the prelude, and not more."""

import re
from importlib import resources

import pytest

from fileq.brokers.redis.scripts import (
    CLAIM,
    COMPLETE_AND_CLAIM,
    ENQUEUE_MEMBERS,
    FLAGS,
    PRELUDE,
    SETTLE_AND_CLAIM,
    SETTLE_AND_FOLLOW,
    SETTLE_MEMBERS,
    VARIANTS,
    script,
    scripts_in,
)

LUA = resources.files("fileq.brokers.redis") / "lua"
FILES = {file.name.removesuffix(".lua"): file.read_text() for file in LUA.iterdir() if file.is_file()}
NAMES = sorted({name for name, text in FILES.items() if text.startswith("#!")} | VARIANTS.keys())
SHARED = re.compile(r"^local (?:function )?(\w+(?:, \w+)*)", re.MULTILINE)


def shared_names() -> set[str]:
    texts = ((LUA / "prelude" / f"{name}.lua").read_text() for name in PRELUDE)
    return {name for text in texts for names in SHARED.findall(text) for name in names.split(", ")}


@pytest.mark.parametrize("name", NAMES)
def test_a_script_defines_every_shared_name_before_it_uses_it(name: str) -> None:
    text = script(name).text.decode()
    for shared in shared_names():
        uses = [match.start() for match in re.finditer(rf"(?<![.\w'\"]){shared}\b(?!['\"])", text)]
        defined = re.search(rf"^local (?:function )?(?:\w+, )*{shared}\b", text, re.MULTILINE)
        assert not uses or (defined is not None and defined.start() < min(uses)), shared


@pytest.mark.parametrize("name", NAMES)
def test_a_script_holds_its_file_and_begins_with_its_flags(name: str) -> None:
    text = script(name).text.decode()
    file = FILES[VARIANTS.get(name, name)]
    flags = f"#!lua flags={FLAGS[name].decode()}" if name in FLAGS else file.split("\n", 1)[0]
    assert text.split("\n", 1)[0] == flags
    assert text.endswith(file[file.rindex("\nreturn ") :])


def test_every_file_of_the_folder_is_a_script_or_claims() -> None:
    parts = {name for name, text in FILES.items() if not text.startswith("#!")}
    assert parts == {CLAIM}
    assert {file.name.removesuffix(".lua") for file in (LUA / "prelude").iterdir()} == set(PRELUDE)


def test_a_script_holds_nothing_it_does_not_use() -> None:
    assert b"local function settle(" in script(SETTLE_AND_CLAIM).text
    assert b"local function settle(" not in script("renew").text
    for verb in (b"retry", b"bury", b"release", b"cancel", b"defer"):
        assert b"function PARTS.%s()" % verb in script(SETTLE_AND_CLAIM).text
        assert b"function PARTS.%s()" % verb not in script(COMPLETE_AND_CLAIM).text
    assert b"local function move_to_scheduled(" not in script(COMPLETE_AND_CLAIM).text
    for name in (COMPLETE_AND_CLAIM, SETTLE_AND_CLAIM):
        assert b"local function add_follow_ups(" not in script(name).text
    assert b"local function add_follow_ups(" in script(SETTLE_AND_FOLLOW).text
    for name in (COMPLETE_AND_CLAIM, SETTLE_AND_CLAIM, SETTLE_AND_FOLLOW, "enqueue"):
        assert b"local function read_batch(" not in script(name).text
    for name in (SETTLE_MEMBERS, ENQUEUE_MEMBERS):
        assert b"local function read_batch(" in script(name).text


def test_no_paragraph_of_the_prelude_ends_inside_a_function() -> None:
    """A blank line ends a paragraph, so a function has none."""
    for name in PRELUDE:
        for paragraph in (LUA / "prelude" / f"{name}.lua").read_text().split("\n\n"):
            code = [line for line in paragraph.splitlines() if not line.startswith("--")]
            assert not code or not code[0].startswith(" "), paragraph


def test_the_scripts_of_a_batch_are_named_once_each() -> None:
    commands = [("EVALSHA", script("renew").sha, 0), ("EXISTS", "x"), ("EVALSHA", script("renew").sha, 0)]
    assert scripts_in(commands) == [script("renew")]
