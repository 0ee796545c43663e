"""What a page says in place of its content: what is wrong, and where to go. Computes only.

Texts of the API are for programs and for the command line; where a page knows better, it names pages. A wrong value of
a form comes back in a field, with the other values, so that nothing has to be typed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from fileq.server.console.page import ConsolePage
from fileq.server.problems import PROBLEMS, ApiProblem

JOB, FILE = "/jobs/{id}", "/files/trace"


class WrongValue(Struct, frozen=True):
    """A parameter of the page that can be typed anew."""

    name: str
    value: str
    detail: str


class PageProblem(Struct, frozen=True):
    """`details` are what is wrong, each once. `wrong` are among them, as fields of a form; `kept` are the other
    values of that form. `search` is a text to look for among the jobs."""

    title: str
    details: tuple[str, ...]
    wrong: tuple[WrongValue, ...] = ()
    kept: tuple[tuple[str, str], ...] = ()
    search: str = ""
    leads_to_files: bool = False


def page_problem(
    problem: ApiProblem, page: ConsolePage | None, params: Mapping[str, str], given: Sequence[tuple[str, str]]
) -> PageProblem:
    """`page` is the page that was asked for, None if there is no such one; `given` are the parameters of its query."""
    if problem.slug == "not-found" and page is not None and page.path in (JOB, FILE):
        return _unknown(page.path, params, dict(given))
    if problem.slug == "forbidden" and page is not None:
        scopes = " or ".join(page.scopes)
        detail = "A person with the scope admin can make you a key that has it: under Admin, Keys and access."
        return PageProblem(f"This page needs the scope {scopes}", (f"Your key does not have it. {detail}",))
    title = "Not found" if problem.slug == "not-found" else PROBLEMS[problem.slug][1]
    wrong = _wrong_values(problem, page, dict(given))
    title = "A value can't be used" if wrong else title
    names = {one.name for one in wrong}
    about = {one.detail for one in wrong}
    details = dict.fromkeys(one.detail for one in problem.errors) if problem.errors else {problem.detail: None}
    known = page.query.__struct_fields__ if page is not None else ()
    kept = tuple((name, value) for name, value in given if value and name not in names and _field(name) in known)
    others = tuple(f"{one[:1].upper()}{one[1:]}" for one in details if one not in about)
    return PageProblem(title, others, wrong, kept if wrong else ())


def _unknown(path: str, params: Mapping[str, str], given: Mapping[str, str]) -> PageProblem:
    if path == JOB:
        id = params.get("id", "")[:200]
        detail = f"No job has the id {id!r}. It never existed, or its record has expired. A page needs the whole id."
        return PageProblem("No such job", (detail,), search=id)
    name = given.get("path", "")[:1000]
    detail = f"Nothing is known about {name!r}. fileq knows a file from the moment when it has made a job of it."
    return PageProblem("No such file", (detail,), search=name.rpartition("/")[2], leads_to_files=True)


def _wrong_values(problem: ApiProblem, page: ConsolePage | None, given: Mapping[str, str]) -> tuple[WrongValue, ...]:
    if page is None or problem.slug != "invalid":
        return ()
    known = page.query.__struct_fields__
    found: dict[str, WrongValue] = {}
    for one in problem.errors:
        name = one.pointer.removeprefix("?")
        if one.pointer.startswith("?") and name in given and _field(name) in known and name != "cursor":
            found.setdefault(name, WrongValue(name, given[name][:500], one.detail))
    return tuple(found.values())


def _field(name: str) -> str:
    """`tag` of `tag.customer`."""
    return name.partition(".")[0]
