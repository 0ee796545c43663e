"""Logging in and out: the one-time link, or a key in a form. Basic and the header of a proxy need no login.

The key travels once, in the body of a request of our own page; the session holds its id only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from fileq.core.errors import BrokerError
from fileq.server.authentication import RequestSender
from fileq.server.console.addresses import addresses_below
from fileq.server.console.rendering import render, theme_in
from fileq.server.csrf import check_same_site
from fileq.server.problems import ApiProblem, problem_of
from fileq.server.services import Services
from fileq.server.sessions import COOKIE

FORM_MAX = 4096
HOME = "/dashboard"
KEYS_NAMED = 3


class LoginPage:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._base = services.config.server.base_path

    async def login(self, request: Request, sender: RequestSender, request_id: str) -> Response:
        next_page = _own_page(request.query_params.get("next", HOME))
        try:
            # Only GET uses the link up: a program that looks at links sends HEAD.
            if request.method == "GET" and (token := request.query_params.get("once", "")):
                return await self._by_link(token, sender)
            if request.method == "POST":
                return await self._by_key(request, sender, next_page)
        except Exception as error:
            problem = problem_of(error)
            if problem is None:
                raise
            return self._form(request, next_page, problem.detail, problem.status, problem.headers)
        return self._form(request, next_page)

    async def logout(self, request: Request, sender: RequestSender, request_id: str) -> Response:
        """Ends the session of this browser. If the broker is away, it is not ended there: it ends at its time, and no
        browser has its cookie."""
        if request.method != "POST":
            raise ApiProblem("method-not-allowed", "send a POST", headers={"Allow": "POST"})
        check_same_site(request.headers, sender.scheme, sender.host)
        if (session := self._services.sessions.read(request.cookies.get(COOKIE, ""))) is not None:
            with suppress(ApiProblem, BrokerError):
                await self._services.link_login.end(session)
        response = RedirectResponse(f"{self._base}/login", 303)
        response.headers["Set-Cookie"] = self._services.sessions.end_cookie(is_https=sender.scheme == "https")
        return response

    async def _by_link(self, token: str, sender: RequestSender) -> Response:
        id = await self._services.link_login.subject(token, sender.address)
        return self._begin(id, "", sender, HOME)

    async def _by_key(self, request: Request, sender: RequestSender, next_page: str) -> Response:
        check_same_site(request.headers, sender.scheme, sender.host)
        body = await self._services.bodies.form(request, sender.address, FORM_MAX)
        key = parse_qs(body.decode("utf-8", "replace")).get("key", [""])[0].strip()
        if not key:
            raise ApiProblem("unauthenticated", "the key is missing; 'fileq keys create' makes one")
        subject, mark = await self._services.authentication.login(key, sender)
        return self._begin(subject, mark, sender, next_page)

    def _begin(self, subject: str, mark: str, sender: RequestSender, next_page: str) -> Response:
        response = RedirectResponse(f"{self._base}{next_page}", 303)
        cookie = self._services.sessions.cookie(subject, is_https=sender.scheme == "https", mark=mark)
        response.headers["Set-Cookie"] = cookie
        return response

    def _form(
        self,
        request: Request,
        next_page: str,
        detail: str = "",
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        theme = theme_in(request.cookies)
        text = render("login.html", **addresses_below(self._base), next=next_page, detail=detail, theme=theme)
        return HTMLResponse(text, status, headers)


def logout_words(admin_keys: Sequence[tuple[str, str]]) -> str:
    """What a person who came by the one-time link has to know before logging out. `admin_keys` are names and ids."""
    if not admin_keys:
        return (
            "You came by the one-time link, which does not work again. To come back, make a key under Admin, Keys and "
            "access, before you log out, or run “fileq login-link” on the server."
        )
    named = [f"“{name}” ({id})" for name, id in admin_keys[:KEYS_NAMED]]
    more = f" and {len(admin_keys) - KEYS_NAMED} more" if len(admin_keys) > KEYS_NAMED else ""
    keys = "this key has" if len(admin_keys) == 1 else "these keys have"
    return (
        "You came by the one-time link, which does not work again. To come back, log in with a key, or run "
        f"“fileq login-link” on the server; {keys} the scope admin: {', '.join(named)}{more}."
    )


def _own_page(given: str) -> str:
    """The page to show after the login: the given one if it is a page of the console, else the overview."""
    is_own = given.startswith(HOME) and "//" not in given and "\\" not in given and given.isprintable()
    return given if is_own and len(given) <= 2000 else HOME
