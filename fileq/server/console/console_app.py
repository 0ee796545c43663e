"""One request for a web page, step by step: who sends it, which page, scope, rate, then the function and its template.

Without a valid session the answer is the page to log in. While the broker is away a page shows what it showed last,
greyed, within a fraction of a second; see last_known.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from fileq import __version__
from fileq.core.errors import BrokerError
from fileq.core.events import RequestFailed
from fileq.server.authentication import RequestSender
from fileq.server.base_path import plain_path, quoted_path, request_path
from fileq.server.console.addresses import addresses_below
from fileq.server.console.admin_page import CheckQuery
from fileq.server.console.last_known import LastKnown
from fileq.server.console.login_page import logout_words
from fileq.server.console.page import ConsolePage, PageRequest
from fileq.server.console.pages import NAVIGATION, PAGES
from fileq.server.console.problem_page import page_problem
from fileq.server.console.rendering import ago, render, theme_in
from fileq.server.console.static_files import static_response
from fileq.server.csrf import check_not_cross_site
from fileq.server.decoding import decode_query
from fileq.server.identity import Caller
from fileq.server.problems import ApiProblem, problem_of
from fileq.server.services import Services

QUICK_S = 0.12  # twice this, and a page during an outage is shown
PATIENT_S = 3.0  # for a page without a last known state: a machine that is busy is no outage
PAGE_S = 10.0
STATE_HEADER = "X-Fileq-State"  # the script reads it, because it swaps a part of the page only
_FRAGMENT = "hx-request"


class Console:
    """Serves /dashboard and what belongs to it."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._base = services.config.server.base_path
        self._last_known = LastKnown()

    async def home(self, request: Request, sender: RequestSender, request_id: str) -> Response:
        return RedirectResponse(f"{self._base}/dashboard", 303)

    async def static(self, request: Request, sender: RequestSender, request_id: str) -> Response:
        return static_response(request.scope["path"].rpartition("/")[2], request.query_params.get("v", ""))

    async def page(self, request: Request, sender: RequestSender, request_id: str) -> Response:
        """Never raises, except for a client that has gone."""
        path = request_path(request.scope, self._base)
        caller: Caller | None = None
        try:
            if request.method not in ("GET", "HEAD"):
                detail = "pages are only read; actions are requests to the API"
                raise ApiProblem("method-not-allowed", detail, headers={"Allow": "GET, HEAD"})
            authentication = self._services.authentication
            caller = await authentication.caller(request.headers, request.cookies, sender, bears_outage=True)
            found, params = _page_of(path)
            self._services.rate_limiter.take(caller.id)
            caller.require(found.scopes, serves_limited=found.serves_limited)
            given = [(name, value) for name, value in request.query_params.multi_items() if value]
            query = decode_query(given, found.query)  # a form sends its empty fields, too
            if caller.is_browser and isinstance(query, CheckQuery) and query.run:
                check_not_cross_site(request.headers)
            origin = f"{sender.scheme}://{sender.host}"
            made = PageRequest(caller, params, query, self._services, request_id, theme_in(request.cookies), origin)
            return await self._shown(found, made, f"{path}?{request.url.query}")
        except Exception as error:
            return self._refused(error, request, caller, request_id, path)

    async def _shown(self, page: ConsolePage, request: PageRequest, address: str) -> Response:
        key = (request.caller.id, address)
        last = self._last_known.get(key)

        def work() -> str:
            return self._rendered(page, request, page.function(request))

        # With nothing to show, a broker that has answered a moment ago gets more time.
        is_patient = last is None and self._services.samples.is_recent
        if self._services.authentication.is_away and not is_patient:
            return self._stale(page, request, last)
        scans_for = request.caller.id if page.is_scan else ""
        shown = asyncio.ensure_future(
            self._services.pool.call(work, scans_for=scans_for, timeout_s=page.timeout_s or PAGE_S)
        )
        shown.add_done_callback(_taken)
        done, _ = await asyncio.wait({shown}, timeout=QUICK_S)
        if not done and not await self._is_broker_there(PATIENT_S if is_patient else QUICK_S):
            return self._stale(page, request, last)
        try:
            text = await shown
        except (ApiProblem, BrokerError) as error:
            problem = problem_of(error)
            if problem is not None and problem.slug == "broker-away":
                return self._stale(page, request, last)
            if problem is not None and problem.slug == "busy" and last is not None:
                return HTMLResponse(self._last_known.noted(last), headers={STATE_HEADER: "kept"})
            raise
        self._last_known.put(key, text)
        return HTMLResponse(text)

    async def _is_broker_there(self, within_s: float) -> bool:
        """Whether it answers at all: a page that takes long on a busy machine is waited for, an outage is not."""
        try:
            await self._services.pool.call(self._services.broker.census, timeout_s=within_s)
        except (ApiProblem, BrokerError):
            return False
        return True

    def _rendered(self, page: ConsolePage, request: PageRequest, values: Mapping[str, Any]) -> str:
        shared = self._shared(request.caller, page, request.theme)
        return render(page.template, **shared, request=request, **values)

    def _stale(self, page: ConsolePage, request: PageRequest, last: str | None) -> Response:
        """What the page showed last, with a banner; without that, a page with the banner only."""
        if last is None:
            last = render("away.html", **self._shared(request.caller, page, request.theme), request=request)
        return HTMLResponse(self._last_known.greyed(last), headers={STATE_HEADER: "away"})

    def _shared(self, caller: Caller | None, page: ConsolePage | None, theme: str = "") -> dict[str, Any]:
        """What every template gets."""
        services, now_ms = self._services, self._services.now_ms()
        by_link = caller is not None and caller.is_login
        return {
            "page": page,
            "navigation": NAVIGATION,
            **addresses_below(self._base),
            "caller": caller,
            "logout_words": logout_words(services.authentication.admin_keys()) if by_link else "",
            "ago": lambda value: ago(value, now_ms),
            "now_ms": now_ms,
            "version": __version__,
            "is_read_only": services.config.server.read_only,
            "theme": theme,
        }

    def _refused(
        self, error: Exception, request: Request, caller: Caller | None, request_id: str, path: str
    ) -> Response:
        problem = problem_of(error)
        if problem is None:
            self._services.emit(RequestFailed(f"page {plain_path(path)[:200]}", request_id, repr(error)[:500], error))
            problem = ApiProblem("internal", "see the log of the server for this request id")
        if problem.slug == "unauthenticated":
            return self._to_login(request, problem)
        page, params = _known_page(path)
        found = page_problem(problem, page, params, request.query_params.multi_items())
        shared = self._shared(caller, None, theme_in(request.cookies))
        address = f"{self._base}{quoted_path(path)}"
        text = render("problem.html", **shared, title=found.title, found=found, address=address, request_id=request_id)
        return HTMLResponse(text, problem.status, problem.headers)

    def _to_login(self, request: Request, problem: ApiProblem) -> Response:
        """With HTTP Basic the browser asks; otherwise the page to log in, which leads back here."""
        address = plain_path(request_path(request.scope, self._base))
        if request.url.query:
            address = f"{address}?{request.url.query}"
        login = f"{self._base}/login?next={quote(address, safe='/')}"
        if _FRAGMENT in request.headers:
            return Response(status_code=401, headers={"HX-Redirect": login})
        if "Basic" in problem.headers.get("WWW-Authenticate", ""):
            shared = self._shared(None, None, theme_in(request.cookies))
            text = render("login.html", **shared, next=address, detail=problem.detail)
            return HTMLResponse(text, 401, problem.headers)
        return RedirectResponse(login, 303)


def _taken(shown: asyncio.Future[str]) -> None:
    """Takes the error of a page that no request waits for any more."""
    if not shown.cancelled():
        shown.exception()


def _page_of(path: str) -> tuple[ConsolePage, Mapping[str, str]]:
    page, params = _known_page(path)
    if page is None:
        raise ApiProblem("not-found", f"there is no page {plain_path(path)[:200]!r}; the navigation names all of them")
    return page, params


def _known_page(path: str) -> tuple[ConsolePage | None, Mapping[str, str]]:
    for page in PAGES:
        if (found := page.pattern.fullmatch(path.rstrip("/") or "/")) is not None:
            return page, {name: plain_path(value) for name, value in found.groupdict().items()}
    return None, {}
