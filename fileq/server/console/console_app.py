"""One request for a web view, step by step: who sends it, which view, scope, rate, then the function and its template.

Without a valid session the answer is the view to log in. While the broker is away a view shows what it showed last,
greyed, within a fraction of a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, quote

from msgspec import UNSET, Struct
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from fileq import __version__
from fileq.core.api_key import Scope
from fileq.core.errors import BrokerError
from fileq.core.job import stamp
from fileq.queries.job_ids import UNCLAIMED
from fileq.server.authentication import COOKIE, Caller, RequestSender, check_not_cross_site, check_same_site
from fileq.server.console import admin_views, batch_views, file_views, job_views, schedule_views, state_views
from fileq.server.console.admin_views import CheckQuery
from fileq.server.console.view import (
    MEDIA_TYPES,
    View,
    ViewList,
    ViewRequest,
    addresses_below,
    ago,
    content_of,
    render,
    theme_in,
    versioned,
)
from fileq.server.limits import ignore
from fileq.server.problems import PROBLEMS, ApiProblem, decode_query, problem_of
from fileq.server.route import ApiRequest, NoQuery, RouteTable, plain_path, quoted_path, request_path
from fileq.server.services import Services

QUICK_S = 0.12  # twice this, and a view during an outage is shown
PATIENT_S = 3.0  # for a view without a last known state: a machine that is busy is no outage
VIEW_S = 10.0
STATE_HEADER = "X-Fileq-State"  # the script reads it, because it swaps a part of the view only
_FRAGMENT = "hx-request"
_A_YEAR = "public, max-age=31536000, immutable"
HOME = "/dashboard"

GLOSSARY = ViewList()


@GLOSSARY.add("/words", "Glossary", "words.html", changes_with="", serves_limited=True)
def words(request: ViewRequest[NoQuery]) -> Mapping[str, Any]:
    return {}


_MODULES = (state_views, job_views, file_views, schedule_views, batch_views, admin_views)
VIEWS: tuple[View, ...] = (*(view for module in _MODULES for view in module.VIEWS), *GLOSSARY)
LETTERS = "ojdfqwsbha"  # of the views in the navigation, in its order
NAVIGATION = sorted((view for view in VIEWS if view.letter), key=lambda view: LETTERS.index(view.letter))
_TABLE = RouteTable(VIEWS, "page", "the navigation names all of them")


KEPT = 100
MAX_CHARS = 1_000_000
_LIVE = '<body data-state="live"'  # in every view; see base.html
FORM_MAX = 4096
KEYS_NAMED = 3


class Console:
    """Serves /dashboard and what belongs to it, and logging in and out: by the one-time link, or by a key in a form.
    Basic and the header of a proxy need no login. The key travels once, in the body of a request of our own; the
    session holds its id only.

    `_last_known` has what views showed last, by the caller and the address, for the time in which the broker does not
    answer or as many views search it as may do so at the same time: a bounded number, kept in memory, and never shown
    to another caller."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._base = services.config.server.base_path
        self._last_known: dict[tuple[str, str], str] = {}

    async def home(self, request: Request, sender: RequestSender, request_id: str) -> Response:
        return RedirectResponse(f"{self._base}/dashboard", 303)

    async def static(self, request: Request, sender: RequestSender, request_id: str) -> Response:
        name, version = request.scope["path"].rpartition("/")[2], request.query_params.get("v", "")
        if name not in MEDIA_TYPES:
            raise ApiProblem("not-found", f"no file is named {name[:100]!r}")
        caching = _A_YEAR if versioned(name).endswith(f"?v={version}") else "no-cache"
        return Response(content_of(name), media_type=MEDIA_TYPES[name], headers={"Cache-Control": caching})

    async def view(self, request: Request, sender: RequestSender, request_id: str) -> Response:
        """Never raises, except for a client that has gone."""
        path = request_path(request.scope, self._base)
        caller: Caller | None = None
        found: View | None = None
        params: Mapping[str, str] = {}
        try:
            authentication = self._services.authentication
            caller = await authentication.caller(request.headers, request.cookies, sender, bears_outage=True)
            found, params = _TABLE.find(request.method, path.removeprefix(HOME).rstrip("/"))
            self._services.rate_limiter.take(caller.id)
            caller.require(found.scopes, serves_limited=found.serves_limited)
            given = [(name, value) for name, value in request.query_params.multi_items() if value]
            query = decode_query(given, found.query)  # a form sends its empty fields, too
            if caller.is_browser and isinstance(query, CheckQuery) and query.run:
                check_not_cross_site(request.headers)
            made: ViewRequest[Any] = ApiRequest(caller, params, query, UNSET, self._services, origin=sender.origin)
            return await self._shown(found, made, request, f"{path}?{request.url.query}")
        except Exception as error:
            problem = self._services.reported(error, f"page {plain_path(path)[:200]}", request_id)
            if problem.slug == "unauthenticated":
                return self._to_login(request, problem)
            words = view_problem(problem, found, params, request.query_params.multi_items())
            shown = {"title": words.title, "found": words, "address": f"{self._base}{quoted_path(path)}"}
            shared = self._shared(request, caller, None)
            text = render("problem.html", **shared, **shown, request_id=request_id)
            return HTMLResponse(text, problem.status, problem.headers)

    async def _shown(self, view: View, request: ViewRequest[Any], http: Request, address: str) -> Response:
        key = (request.caller.id, address)
        last = self._last_known.get(key)

        def work() -> str:
            shared = self._shared(http, request.caller, view)
            may = {"may_operate": request.has(Scope.OPERATE), "may_admin": request.has(Scope.ADMIN)}
            return render(view.template, **shared, **may, request=request, **view.function(request))

        # With nothing to show, a broker that has answered a moment ago gets more time.
        is_patient = last is None and self._services.samples.is_recent
        if self._services.authentication.is_away and not is_patient:
            return self._stale(view, request, http, last)
        scans_for, timeout_s = request.caller.id if view.is_scan else "", view.timeout_s or VIEW_S
        shown = asyncio.ensure_future(self._services.pool.call(work, scans_for=scans_for, timeout_s=timeout_s))
        shown.add_done_callback(ignore)
        done, _ = await asyncio.wait({shown}, timeout=QUICK_S)
        if not done and not await self._is_broker_there(PATIENT_S if is_patient else QUICK_S):
            return self._stale(view, request, http, last)
        try:
            text = await shown
        except (ApiProblem, BrokerError) as error:
            problem = problem_of(error)
            slug = problem.slug if problem is not None else ""
            if slug == "broker-away":
                return self._stale(view, request, http, last)
            if slug == "busy" and last is not None:
                return _from_memory(last, "kept")
            raise
        if len(text) <= MAX_CHARS:
            self._last_known.pop(key, None)
            self._last_known[key] = text  # now the newest one
            while len(self._last_known) > KEPT:
                del self._last_known[next(iter(self._last_known))]
        return HTMLResponse(text)

    async def _is_broker_there(self, within_s: float) -> bool:
        """Whether it answers at all: a view that takes long on a busy machine is waited for, an outage is not."""
        try:
            await self._services.pool.call(self._services.broker.census, timeout_s=within_s)
        except (ApiProblem, BrokerError):
            return False
        return True

    def _stale(self, view: View, request: ViewRequest[Any], http: Request, last: str | None) -> Response:
        """What the view showed last, with a banner; without that, a view with the banner only."""
        if last is None:
            last = render("away.html", **self._shared(http, request.caller, view), request=request)
        return _from_memory(last, "away")

    def _shared(self, http: Request, caller: Caller | None, view: View | None) -> dict[str, Any]:
        """What every template gets."""
        services, now_ms = self._services, self._services.now_ms()
        by_link = caller is not None and caller.is_login
        return {
            "view": view,
            "navigation": NAVIGATION,
            "queue_names": services.config.worker.priorities,
            "done_words": job_views.DONE,
            **addresses_below(self._base),
            "caller": caller,
            "logout_words": logout_words(services.authentication.admin_keys()) if by_link else "",
            "ago": lambda value: ago(value, now_ms),
            "now_ms": now_ms,
            "now": stamp(now_ms) or "",
            "version": __version__,
            "is_read_only": services.config.server.read_only,
            "theme": theme_in(http.cookies),
        }

    def _to_login(self, request: Request, problem: ApiProblem) -> Response:
        """With HTTP Basic the browser asks; otherwise the view to log in, which leads back here."""
        address = plain_path(request_path(request.scope, self._base))
        if request.url.query:
            address = f"{address}?{request.url.query}"
        login = f"{self._base}/login?next={quote(address, safe='/')}"
        if _FRAGMENT in request.headers:
            return Response(status_code=401, headers={"HX-Redirect": login})
        if "Basic" in problem.headers.get("WWW-Authenticate", ""):
            return self._login_form(request, address, problem)
        return RedirectResponse(login, 303)

    async def login(self, request: Request, sender: RequestSender, request_id: str) -> Response:
        next_path = _own_path(request.query_params.get("next", HOME))
        try:
            # Only GET uses the link up: a program that looks at links sends HEAD.
            if request.method == "GET" and (token := request.query_params.get("once", "")):
                cookie = await self._services.authentication.login_by_link(token, sender)
                return RedirectResponse(f"{self._base}{HOME}", 303, {"Set-Cookie": cookie})
            if request.method == "POST":
                return await self._by_key(request, sender, next_path)
        except Exception as error:
            problem = self._services.reported(error, "login", request_id)
            return self._login_form(request, next_path, problem)
        return self._login_form(request, next_path)

    async def logout(self, request: Request, sender: RequestSender, request_id: str) -> Response:
        """Ends the session of this browser. If the broker is away, it is not ended there: it ends at its time, and no
        browser has its cookie."""
        check_same_site(request.headers, sender)
        if (session := self._services.sessions.read(request.cookies.get(COOKIE, ""))) is not None:
            with suppress(ApiProblem, BrokerError):
                await self._services.authentication.end(session)
        ended = {"Set-Cookie": self._services.sessions.end_cookie(sender)}
        return RedirectResponse(f"{self._base}/login", 303, ended)

    async def _by_key(self, request: Request, sender: RequestSender, next_path: str) -> Response:
        check_same_site(request.headers, sender)
        body = await self._services.bodies.form(request, sender.address, FORM_MAX)
        key = parse_qs(body.decode("utf-8", "replace")).get("key", [""])[0].strip()
        if not key:
            raise ApiProblem("unauthenticated", "the key is missing; 'fileq keys create' creates one")
        cookie = await self._services.authentication.login(key, sender)
        return RedirectResponse(f"{self._base}{next_path}", 303, {"Set-Cookie": cookie})

    def _login_form(self, request: Request, next_path: str, problem: ApiProblem | None = None) -> Response:
        detail, theme = problem.detail if problem is not None else "", theme_in(request.cookies)
        text = render("login.html", **addresses_below(self._base), next=next_path, detail=detail, theme=theme)
        return HTMLResponse(text, *((problem.status, problem.headers) if problem is not None else ()))


def _from_memory(text: str, state: str) -> Response:
    """What a view showed before: `away` greys it below the banner about the broker, `kept` adds a quiet line."""
    return HTMLResponse(text.replace(_LIVE, f'<body data-state="{state}"', 1), headers={STATE_HEADER: state})


def logout_words(admin_keys: Sequence[tuple[str, str]]) -> str:
    """What a person who came by the one-time link has to know before logging out. `admin_keys` are names and ids."""
    if not admin_keys:
        return (
            "You signed in with a one-time link. To log in again, first create a key under Admin, Keys and access, "
            "or run “fileq login-link” on the server."
        )
    named = [f"“{name}” ({id})" for name, id in admin_keys[:KEYS_NAMED]]
    more = f" and {len(admin_keys) - KEYS_NAMED} more" if len(admin_keys) > KEYS_NAMED else ""
    keys = "this key has" if len(admin_keys) == 1 else "these keys have"
    return (
        "You signed in with a one-time link. To log in again, use a key or run "
        f"“fileq login-link” on the server; {keys} the scope admin: {', '.join(named)}{more}."
    )


def _own_path(given: str) -> str:
    """The view to show after the login: the given one if it is a view of the console, else the overview."""
    is_own = given.startswith(HOME) and "//" not in given and "\\" not in given and given.isprintable()
    return given if is_own and len(given) <= 2000 else HOME


# What a view says in place of its content: what is wrong, and where to go. Computes only.
#
# Texts of the API are for programs and for the command line; where a view knows better, it names views. A wrong value
# of a form comes back in a field, with the other values, so that nothing has to be typed again.

JOB, FILE = "/jobs/{id:path}", "/files/trace"


class WrongValue(Struct, frozen=True):
    """A parameter of the view that can be corrected."""

    name: str
    value: str
    detail: str


class ViewProblem(Struct, frozen=True):
    """`details` are what is wrong, each once. `wrong` are among them, as fields of a form; `kept` are the other
    values of that form. `search` is a text to look for among the jobs."""

    title: str
    details: tuple[str, ...]
    wrong: tuple[WrongValue, ...] = ()
    kept: tuple[tuple[str, str], ...] = ()
    search: str = ""
    leads_to_files: bool = False


def view_problem(
    problem: ApiProblem, view: View | None, params: Mapping[str, str], given: Sequence[tuple[str, str]]
) -> ViewProblem:
    """`view` is the view that was asked for, None if there is no such one; `given` are the parameters of its query."""
    if problem.slug == "not-found" and view is not None and view.path in (JOB, FILE):
        return _unknown(view.path, params, dict(given))
    if problem.slug == "forbidden" and view is not None:
        scopes = " or ".join(view.scopes)
        detail = "Ask an admin to create one under Admin, Keys and access."
        return ViewProblem(f"This page needs the scope {scopes}", (f"Your key does not have it. {detail}",))
    known = view.query.__struct_fields__ if view is not None else ()
    filled = [(name, value) for name, value in given if value and name.partition(".")[0] in known]  # `tag.customer`
    values = dict(filled)
    found: dict[str, WrongValue] = {}
    for one in problem.errors if problem.slug == "invalid" else ():
        name = one.pointer.removeprefix("?")
        if one.pointer.startswith("?") and name in values and name != "cursor":
            found.setdefault(name, WrongValue(name, values[name][:500], one.detail))
    about = {one.detail for one in found.values()}
    details = dict.fromkeys(one.detail for one in problem.errors) if problem.errors else {problem.detail: None}
    others = tuple(f"{one[:1].upper()}{one[1:]}" for one in details if one not in about)
    if found:
        kept = tuple((name, value) for name, value in filled if name not in found)
        return ViewProblem("Invalid value", others, tuple(found.values()), kept)
    return ViewProblem("Not found" if problem.slug == "not-found" else PROBLEMS[problem.slug][1], others)


def _unknown(path: str, params: Mapping[str, str], given: Mapping[str, str]) -> ViewProblem:
    if path == JOB:
        id = params.get("id", "")[:200]
        detail = f"No job has the id {id!r}. It never existed, its record has expired, or {UNCLAIMED}. Use the full id."
        return ViewProblem("No such job", (detail,), search=id)
    name = given.get("path", "")[:1000]
    detail = f"No record of {name!r}. A file appears here once a job has been enqueued for it."
    return ViewProblem("No such file", (detail,), search=name.rpartition("/")[2], leads_to_files=True)
