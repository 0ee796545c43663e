"""Counts the steps of a regular expression on a text, and finds texts on which they grow faster than the text.

A backtracking matcher like Python's own, in Python: it tries the same ways in the same order, without its shortcuts.
Backreferences are not supported, and raise.
"""

# The parser of regular expressions has no public name and no types.
# mypy: disable-error-code="no-untyped-call"
import random
import re
import re._compiler as sre_compile  # type: ignore[import-not-found]
import re._constants as c  # type: ignore[import-not-found]
import re._parser as sre_parse  # type: ignore[import-not-found]
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

SHORT, LONG = 60, 240  # characters of an attack
STEPS_PER_CHARACTER = 25  # so few need no comparison with the shorter text
GROWTH = 2.0  # for four times the text: 4 times as many steps are linear, 16 times are quadratic
TYPICAL = "aZ09_ -./:,;=@\\'\"<{[(#\n\0é"


class TooManyStepsError(Exception):
    pass


class Steps:
    """One regular expression, ready to be run. `taken` is the number of steps since the last reset."""

    def __init__(self, pattern: str | bytes, flags: int = 0) -> None:
        self.tree = sre_parse.parse(pattern, flags)
        self._is_bytes = isinstance(pattern, bytes)
        self._known: dict[tuple[int, str], bool] = {}
        self._singles: list[re.Pattern[Any]] = []
        self._program = self._compiled(self.tree)
        self.taken = 0
        self.most = 0

    def run(self, text: str, use: str) -> list[tuple[int, int]]:
        """Where it matches, if used by `match`, `fullmatch`, `search` or, all others, over the whole text."""
        self.taken, found, start = 0, [], 0
        while start <= len(text):
            end = self._end(self._program, text, start, must_end=use == "fullmatch")
            if end is not None:
                found.append((start, end))
            if use in ("match", "fullmatch") or (use == "search" and found):
                break
            start = end if end is not None and end > start else start + 1
        return found

    def _end(self, program: list[Any], text: str, place: int, *, must_end: bool = False) -> int | None:
        stack: list[tuple[int, int, tuple[int, ...]]] = [(0, place, ())]
        while stack:
            at, place, marks = stack.pop()
            while True:
                self.taken += 1
                if self.most and self.taken > self.most:
                    raise TooManyStepsError
                kind, first, second = program[at]
                at += 1
                if kind == "one":
                    if place >= len(text) or not self._is_one(first, text[place]):
                        break
                    place += 1
                elif kind == "split":
                    stack.append((second, place, marks))
                    at = first
                elif kind == "jump":
                    at = first
                elif kind == "mark":
                    marks = (*marks, place)
                elif kind == "moved":
                    if marks[-1] == place:
                        break
                    marks = marks[:-1]
                elif kind == "at":
                    if not first(text, place):
                        break
                elif kind == "look":
                    begin = place - second[0]
                    is_found = begin >= 0 and self._end(first, text, begin) is not None
                    if is_found == second[1]:
                        break
                elif kind == "atomic":
                    end = self._end(first, text, place)
                    if end is None:
                        break
                    place = end
                elif must_end and place != len(text):
                    break
                else:
                    return place
        return None

    def _is_one(self, number: int, character: str) -> bool:
        key = number, character
        if key not in self._known:
            one = character.encode("latin-1") if self._is_bytes else character
            self._known[key] = self._singles[number].fullmatch(one) is not None
        return self._known[key]

    def _compiled(self, tree: Any) -> list[Any]:
        program: list[Any] = []
        self._add(program, tree)
        return [*program, ("end", None, None)]

    def _add(self, program: list[Any], tree: Any) -> None:
        for node in tree:
            self._add_node(program, *node, tree)

    def _add_node(self, program: list[Any], kind: Any, value: Any, tree: Any) -> None:
        if kind in (c.LITERAL, c.NOT_LITERAL, c.ANY, c.IN):
            single = sre_parse.SubPattern(tree.state, [(kind, value)])
            flags = self.tree.state.flags | (re.DOTALL if kind is c.ANY and self.tree.state.flags & re.DOTALL else 0)
            program.append(("one", len(self._singles), None))
            self._singles.append(sre_compile.compile(single, flags))
        elif kind in (c.MAX_REPEAT, c.MIN_REPEAT):
            self._add_repeat(program, *value, is_greedy=kind is c.MAX_REPEAT)
        elif kind is c.POSSESSIVE_REPEAT:
            inner: list[Any] = []
            self._add_repeat(inner, *value, is_greedy=True)
            program.append(("atomic", [*inner, ("end", None, None)], None))
        elif kind is c.ATOMIC_GROUP:
            program.append(("atomic", self._compiled(value), None))
        elif kind is c.SUBPATTERN:
            self._add(program, value[3])
        elif kind is c.BRANCH:
            self._add_branches(program, value[1])
        elif kind in (c.ASSERT, c.ASSERT_NOT):
            width = value[1].getwidth()[0] if value[0] < 0 else 0
            program.append(("look", self._compiled(value[1]), (width, kind is c.ASSERT_NOT)))
        elif kind is c.AT:
            program.append(("at", self._place(value), None))
        else:
            raise NotImplementedError(kind)

    def _add_branches(self, program: list[Any], branches: list[Any]) -> None:
        ends = []
        for branch in branches[:-1]:
            split = len(program)
            program.append(None)
            self._add(program, branch)
            ends.append(len(program))
            program.append(None)
            program[split] = ("split", split + 1, len(program))
        self._add(program, branches[-1])
        for end in ends:
            program[end] = ("jump", len(program), None)

    def _add_repeat(self, program: list[Any], least: int, most: Any, body: Any, *, is_greedy: bool) -> None:
        for _ in range(least):
            self._add(program, body)
        is_endless, splits = most is c.MAXREPEAT, []
        for _ in range(1 if is_endless else most - least):
            splits.append(len(program))
            program += [None, ("mark", None, None)]
            self._add(program, body)
            program.append(("moved", None, None))
        if is_endless:
            program.append(("jump", splits[0], None))
        for split in splits:
            ways = (split + 1, len(program))
            program[split] = ("split", *(ways if is_greedy else ways[::-1]))

    def _place(self, value: Any) -> Callable[[str, int], bool]:
        flags = self.tree.state.flags
        texts = {c.AT_BEGINNING: "^", c.AT_BEGINNING_STRING: r"\A", c.AT_END: "$", c.AT_END_STRING: r"\Z"}
        text = {**texts, c.AT_BOUNDARY: r"\b", c.AT_NON_BOUNDARY: r"\B"}[value]
        found = re.compile(text.encode() if self._is_bytes else text, flags & ~re.VERBOSE)
        encoded: Callable[[str], Any] = (lambda text: text.encode("latin-1")) if self._is_bytes else (lambda text: text)
        return lambda text, place: found.match(encoded(text), place) is not None


class Attack(NamedTuple):
    before: str
    pumped: str
    after: str

    def text(self, length: int) -> str:
        return self.before + self.pumped * max(length // len(self.pumped), 3) + self.after


def worst_attack(steps: Steps, use: str) -> tuple[Attack, float] | None:
    """A text on which the steps grow by more than GROWTH times its own growth, and by how much; None if all grow like
    their texts."""
    if steps.tree.getwidth()[1] < LONG:
        return None
    for attack in attacks(steps):
        short, long = attack.text(SHORT), attack.text(LONG)
        before = _taken(steps, short, use, 20 * STEPS_PER_CHARACTER * SHORT)
        after = _taken(steps, long, use, max(20 * before, STEPS_PER_CHARACTER * len(long)))
        growth = after / before / (len(long) / len(short))
        if after > STEPS_PER_CHARACTER * len(long) and growth > GROWTH:
            return attack, growth
    return None


def _taken(steps: Steps, text: str, use: str, most: int) -> int:
    steps.most = most
    with suppress(TooManyStepsError):
        steps.run(text, use)
    return steps.taken


def attacks(steps: Steps) -> Iterator[Attack]:
    """Repeats parts of what the expression matches, and single characters, behind what comes before each repetition."""
    choose = random.Random(0)
    literals = {chr(value) for kind, value in _nodes(steps.tree) if kind is c.LITERAL}
    alphabet = sorted(literals - set(TYPICAL))[:12] + list(TYPICAL)
    if steps._is_bytes:
        alphabet = [one for one in alphabet if ord(one) < 256]
    seen = set()
    for before, items in _rows(steps, steps.tree, "", alphabet, choose):
        pumps = set(alphabet)
        for start in range(len(items)):
            for end in range(start + 1, min(start + 12, len(items)) + 1):
                pumps.add("".join(_sample(steps, node, alphabet, choose) for node in items[start:end]))
        for pump in sorted(pumps - {""}):
            for after in ("", "\0", "!"):
                attack = Attack(before, pump, after)
                if attack not in seen:
                    seen.add(attack)
                    yield attack


def _rows(steps: Steps, tree: Any, before: str, alphabet: list[str], choose: random.Random) -> Iterator[Any]:
    """Each row of nodes that has a repetition, with a text that leads to it."""
    items = list(tree)
    if any(kind in _REPEATS for kind, _ in items):
        yield before, items
    for kind, value in items:
        if kind in _REPEATS:
            yield before, [(kind, value)]
        for inner in _inner(kind, value):
            yield from _rows(steps, inner, before, alphabet, choose)
        before += _sample(steps, (kind, value), alphabet, choose)


_REPEATS = (c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT)


def _inner(kind: Any, value: Any) -> list[Any]:
    if kind in _REPEATS:
        return [value[2]]
    if kind is c.SUBPATTERN:
        return [value[3]]
    if kind is c.BRANCH:
        return list(value[1])
    if kind is c.ATOMIC_GROUP:
        return [value]
    return [value[1]] if kind in (c.ASSERT, c.ASSERT_NOT) else []


def _nodes(tree: Any) -> Iterator[Any]:
    for kind, value in tree:
        yield kind, value
        if kind is c.IN:
            yield from value
        for inner in _inner(kind, value):
            yield from _nodes(inner)


def _sample(steps: Steps, node: Any, alphabet: list[str], choose: random.Random) -> str:
    """A text that this node matches, if one is found."""
    kind, value = node
    if kind is c.LITERAL:
        return chr(value)
    if kind in (c.NOT_LITERAL, c.ANY, c.IN):
        single = sre_compile.compile(sre_parse.SubPattern(steps.tree.state, [node]), steps.tree.state.flags)
        encoded = [one.encode("latin-1") if steps._is_bytes else one for one in alphabet]
        fitting = [one for one, raw in zip(alphabet, encoded, strict=True) if single.fullmatch(raw)]
        return choose.choice(fitting) if fitting else ""
    if kind in _REPEATS:
        times = max(value[0], 1)
        return "".join(_sample(steps, one, alphabet, choose) for _ in range(times) for one in value[2])
    if kind in (c.ASSERT, c.ASSERT_NOT):
        return ""
    inner = _inner(kind, value)
    return "".join(_sample(steps, one, alphabet, choose) for one in choose.choice(inner)) if inner else ""
