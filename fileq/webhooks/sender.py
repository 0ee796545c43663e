"""One attempt of a delivery, and its request: the name is resolved once, every address is checked, and the connection
goes to a checked address. No redirect is followed and no proxy variable is read.

The URL is a text that others may have chosen, and a name may resolve differently each time it is asked for. So the
address that was checked is the one that is connected to; the name stays in TLS and in the Host header. One time limit
holds for everything together: a receiver that sends a byte now and then cannot extend it. The caller, which waits for
the answer, looks every SLICE_S whether the delivery was cancelled; it ends then, and its connection is closed.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

import h11
import msgspec
from msgspec import UNSET, Struct

from fileq import __version__
from fileq.config.http_settings import WebhookSettings
from fileq.core.errors import BrokerError, ConfigError, FileqError
from fileq.core.events import Emit, WebhookDelivered, WebhookDisabled, WebhookFailed
from fileq.core.job import Job
from fileq.core.outcome import Done, Failed
from fileq.core.text import printable
from fileq.core.webhook import (
    ANSWERED,
    RETRY_DELAYS_S,
    TIMEOUT_S,
    InvalidUrl,
    Target,
    parse_target,
    signature_header,
    url_problem,
)
from fileq.webhooks.store import FAILURES_MAX, KnownWebhook, WebhookStore
from fileq.webhooks.subscriptions import DeliveryPayload, event_of

ANSWER_MAX = 64 << 10  # bytes of an answer that are read, headers included
ANSWER_KEPT = 500  # characters of an answer that are kept
DEFECT_KEPT = 100  # characters of what is said about an answer that is not HTTP
ADDRESSES_MAX = 4  # how many addresses of a name are tried, one after the other
SLICE_S = 0.25

Resolve: TypeAlias = Callable[[str, int], Sequence[str]]
Connect: TypeAlias = Callable[[tuple[str, int], float], socket.socket]  # within so many seconds


class NotSent(Exception):
    """No answer: the request was refused here, or the receiver can't be reached. The message does not hold the URL."""


class Stopped(Exception):
    """The delivery was cancelled before there was an answer. The receiver may have the message."""


class Answer(Struct, frozen=True):
    status: int
    text: str  # the beginning of the body
    retry_after: str = ""


def addresses_of(host: str, port: int) -> list[str]:
    """The addresses of a name, as the system resolves it."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # A scope, as in fe80::1%eth0, must not be lost: such an address is refused.
    return [f"{str(a[0]).partition('%')[0]}%{a[3]}" if len(a) == 4 and a[3] else str(a[0]) for *_, a in found]


class Sender(Struct, dict=True, eq=False):
    """`settings.allow_*` say where it may send. `resolve` and `connect` are replaced in tests. `tls` makes the context
    of a connection."""

    settings: WebhookSettings
    timeout_s: float = TIMEOUT_S
    resolve: Resolve = addresses_of
    connect: Connect = socket.create_connection
    tls: Callable[[], ssl.SSLContext] = ssl.create_default_context

    @cached_property
    def tls_context(self) -> ssl.SSLContext:
        return self.tls()

    def post(
        self, url: str, headers: Mapping[str, str], body: bytes, is_stopped: Callable[[], bool] = lambda: False
    ) -> Answer:
        """The receiver's answer, of any status. Raises NotSent, and Stopped soon after `is_stopped`."""
        until_s, target = time.monotonic() + self.timeout_s, self._target(url)
        exchange = _Exchange(self, target, headers, body, until_s)
        while not exchange.answer.done() and (left_s := until_s - time.monotonic()) > 0:
            if is_stopped():
                exchange.end()
                raise Stopped
            wait([exchange.answer], min(SLICE_S, left_s))
        is_late = not exchange.answer.done()
        if is_late:
            exchange.end()
        try:
            return exchange.answer.result(SLICE_S)  # at the end of the time, too: an answer may have begun
        except (OSError, h11.ProtocolError, ValueError) as error:
            if is_late or isinstance(error, TimeoutError):
                raise NotSent(f"{target.host} did not answer within {self.timeout_s:g}s") from error
            raise NotSent(_described(error, target)) from error

    def _target(self, url: str) -> Target:
        """Checked again at every delivery: the rules may have changed since the webhook was defined."""
        if problem := url_problem(url, allow_http=self.settings.allow_http, allow_ports=self.settings.allow_ports):
            raise NotSent(f"the URL {problem}")
        try:
            return parse_target(url)
        except InvalidUrl as error:
            raise NotSent(f"the URL {error}") from error

    def addresses(self, target: Target) -> list[str]:
        found = list(dict.fromkeys(self.resolve(target.host, target.port)))
        if not found:
            raise NotSent(f"{target.host} has no address")
        allowed = networks(self.settings.allow_networks)
        for address in found:
            # One wrong address is enough: which one is used must not depend on luck.
            if problem := blocked_because(address, allowed):
                raise NotSent(f"{target.host} resolves to an address that is not allowed: {problem}")
        return found[:ADDRESSES_MAX]


class _Exchange:
    """One request, by calls that block, in a thread of its own. `answer` is what it leads to.

    end() shuts its connection down, which ends every such call. Resolving a name and connecting can't be ended: then
    the thread is left to itself, and sends nothing."""

    def __init__(self, sender: Sender, target: Target, headers: Mapping[str, str], body: bytes, until_s: float) -> None:
        self._sender = sender
        self._target = target
        self._headers = {"Host": target.authority, **headers, "Content-Length": str(len(body)), "Connection": "close"}
        self._body = body
        self._until_s = until_s
        self._connection: socket.socket | None = None
        self._is_ended = False
        self._closing = threading.Lock()  # so that end() never meets a descriptor that something else has already
        self.answer = Future[Answer]()
        threading.Thread(target=self._run, name="webhook", daemon=True).start()

    def end(self) -> None:
        self._is_ended = True
        if self._connection is not None:
            with self._closing, suppress(OSError):
                # Not the method of a TLS connection, which its own thread may be using.
                socket.socket.shutdown(self._connection, socket.SHUT_RDWR)

    def _run(self) -> None:
        try:
            answer = self._exchange()
        except BaseException as error:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(answer)
        finally:
            if self._connection is not None:
                with self._closing:
                    self._connection.close()

    def _exchange(self) -> Answer:
        connection = self._hold(self._connected(self._sender.addresses(self._target)))
        connection.settimeout(self._sender.timeout_s)
        if self._target.scheme == "https":
            tls, target = self._sender.tls_context, self._target
            secured = tls.wrap_socket(connection, server_hostname=target.host, do_handshake_on_connect=False)
            self._hold(secured)
            secured.do_handshake()
            connection = secured
        parser = h11.Connection(h11.CLIENT, ANSWER_MAX)
        request = h11.Request(method="POST", target=self._target.path, headers=[*self._headers.items()])
        parts = (request, h11.Data(self._body), h11.EndOfMessage())
        connection.sendall(b"".join(parser.send(part) or b"" for part in parts))
        return _answer_on(connection, parser)

    def _connected(self, addresses: Sequence[str]) -> socket.socket:
        *others, last = addresses
        for address in others:
            with suppress(OSError):  # one that does not answer leaves time for the next one
                return self._connect(address, (self._until_s - time.monotonic()) / 2)
        return self._connect(last, self._until_s - time.monotonic())

    def _connect(self, address: str, timeout_s: float) -> socket.socket:
        return self._sender.connect((address, self._target.port), max(0.001, timeout_s))

    def _hold(self, connection: socket.socket) -> socket.socket:
        """From now on end() shuts this one down."""
        self._connection = connection
        if self._is_ended:
            raise ConnectionAbortedError
        return connection


def _answer_on(connection: socket.socket, parser: h11.Connection) -> Answer:
    """Reads at most ANSWER_MAX bytes, headers included. The status says whether the delivery was received: a body that
    does not end does not change that."""
    response, text, left = None, b"", ANSWER_MAX
    try:
        while not isinstance(event := parser.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                piece = connection.recv(left) if left else b""
                if not piece and response is None:
                    raise ConnectionError("the connection was closed before there was an answer")
                left -= len(piece)
                parser.receive_data(piece)
            elif isinstance(event, h11.Response):
                response = event
            elif isinstance(event, h11.Data):
                text += event.data
    except (OSError, h11.ProtocolError):
        if response is None:
            raise
    assert response is not None
    shown = text[: 4 * ANSWER_KEPT].decode(errors="replace")[:ANSWER_KEPT]
    retry_after = next((value for name, value in response.headers if name == b"retry-after"), b"")
    return Answer(response.status_code, shown, retry_after.decode("latin-1"))


def _described(error: Exception, target: Target) -> str:
    if isinstance(error, socket.gaierror):
        return f"{target.host} can't be resolved: {error.strerror or error}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of {target.host} is not valid: {error.verify_message}"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"{target.host}: {printable(text[:DEFECT_KEPT])}"  # it may hold what the receiver sent


# Which addresses a webhook may call: public ones, and those of `webhooks.allow_networks`. Fails closed.
#
# The rules are listed here instead of taken from `ipaddress.is_global`, whose meaning changes between releases of
# Python. Of IPv6 only the space that is assigned for global use counts as public; everything else is blocked, so that
# forms which carry an IPv4 address (IPv4-mapped, NAT64, 6to4, Teredo) reach nothing.


Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network


def networks(texts: Sequence[str]) -> tuple[Network, ...]:
    return tuple(map(ip_network, texts))


_GLOBAL_V6 = IPv6Network("2000::/3")
_BLOCKED = networks(
    (
        "0.0.0.0/8",  # this network, and the unspecified address
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local, with the metadata services of clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # IETF protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks of networks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
        "2001::/23",  # IETF protocol assignments: Teredo, ORCHID, benchmarks
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation
    )
)


def blocked_because(address: str, allowed: Sequence[Network] = ()) -> str:
    """Why this address may not be called; "" if it may."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return f"{address!r} is not an IP address"
    if isinstance(parsed, IPv6Address) and parsed.scope_id is not None:
        return f"{address} belongs to one link only"
    if any(parsed in network for network in allowed):
        return ""
    return "" if is_public(parsed) else f"{address} is not a public address"


def literal_problem(url: str, settings: WebhookSettings) -> str:
    """What is wrong with a URL that holds an address in place of a name; "" for a name, which each delivery resolves,
    and for what is no URL."""
    try:
        host = parse_target(url).host
        ip_address(host)
    except ValueError:
        return ""
    if problem := blocked_because(host, networks(settings.allow_networks)):
        return f"leads to an address that is not allowed: {problem}; use another, or add it to webhooks.allow_networks"
    return ""


def is_public(address: Address) -> bool:
    is_global = isinstance(address, IPv4Address) or address in _GLOBAL_V6
    return is_global and not any(address in network for network in _BLOCKED)


# One attempt of a delivery: sends it, and decides what the answer means for the job and for the webhook.
#
# 2xx is success. Anything else is a failure, and the retry policy tries again after RETRY_DELAYS_S, or later if the
# receiver asks for that. 410 disables the webhook. Another 4xx, except 408, 425 and 429, does not change by repeating
# it: the delivery is dead after PERMANENT_AFTER attempts. 50 failures in a row over a day disable the webhook.
#
# Runs in a thread of the worker, and ends soon after the job is cancelled or the worker stops; that says nothing about
# the receiver. Never raises, and a broker that does not answer changes no outcome.
#
# What a kill -9 leaves: the delivery in its slot. A reaper gives it back, and it is sent again with the same
# `webhook-id`, by which receivers recognise it.

PERMANENT_AFTER = 3
RETRY_AFTER_MAX_S = 86_400.0
GONE = 410
_MAY_CHANGE = (408, 425, 429)  # of 4xx: worth as many attempts as a failure of the server


class DeliveryAttempts(Struct, frozen=True):
    """`known` returns the definitions in effect; the store is asked about a webhook that is not among them."""

    store: WebhookStore
    sender: Sender
    known: Callable[[], Mapping[str, KnownWebhook]]
    emit: Emit
    now_ms: Callable[[], int]

    def run(self, job: Job, is_stopped: Callable[[], bool] = lambda: False) -> Done | Failed:
        """Sends this delivery once."""
        try:
            payload = _payload_of(job)
            event = event_of(payload)
        except (msgspec.DecodeError, ValueError) as error:
            return Failed(f"the payload is not that of a delivery: {error}", "InvalidDelivery", is_permanent=True)
        try:
            known = self.known().get(payload.webhook) or self.store.load().get(payload.webhook)
        except BrokerError as error:
            return Failed(f"the webhook can't be read: {error}", "BrokerError", is_sample=False)
        if known is None:
            return Done(_result(None, f"not sent: webhook {payload.webhook!r} was removed"))
        if known.state.disabled:
            advice = f"'fileq webhook enable {payload.webhook}' enables it, 'fileq dlq retry' sends this again"
            error_text = f"webhook {payload.webhook!r} is disabled: {known.state.disabled}; {advice}"
            return Failed(error_text, "WebhookDisabled", is_permanent=True, is_sample=False)
        return self._send(job, known, event, bytes(payload.body), is_stopped)

    def _send(
        self, job: Job, known: KnownWebhook, event: str, body: bytes, is_stopped: Callable[[], bool]
    ) -> Done | Failed:
        name, started_s = known.webhook.name, time.monotonic()
        answer: Answer | None = None
        try:
            answer = send(self.sender, known, job.id, body, self.now_ms(), is_stopped)
            error = "" if 200 <= answer.status < 300 else f"{ANSWERED} {answer.status}"
        except Stopped:  # which outcome that has, the executor knows
            return Failed("stopped before there was an answer", "Stopped", is_sample=False)
        except (NotSent, ConfigError) as not_sent:
            error = str(not_sent)
        duration_ms = round((time.monotonic() - started_s) * 1000)
        if answer is not None and not error:
            self.emit(WebhookDelivered(name, job.id, event, answer.status, duration_ms))
            self._note(lambda: self.store.forget_failures(name))
            return Done(_result(answer.status, printable(answer.text)))
        status = answer.status if answer is not None else None
        self.emit(WebhookFailed(name, job.id, event, status, error, duration_ms))
        self._note(lambda: self._count_failure(name, status))
        return _failed(job, answer, error)

    def _count_failure(self, name: str, status: int | None) -> None:
        if status == GONE:
            self._disable(name, "the receiver answered 410 (gone)")
            return
        state = self.store.count_failure(name)
        if not state.disabled and self.store.is_failing_too_long(state):
            self._disable(name, f"{state.failures} deliveries in a row have failed for a day (at most {FAILURES_MAX})")

    def _disable(self, name: str, reason: str) -> None:
        if self.store.disable(name, reason):
            self.emit(WebhookDisabled(name, reason))

    def _note(self, call: Callable[[], None]) -> None:
        """Notes in the catalog are best effort: the outcome of the attempt is known, and the worker reports outages."""
        try:
            call()
        except FileqError:
            return


def send(
    sender: Sender, known: KnownWebhook, id: str, body: bytes, now_ms: int, is_stopped: Callable[[], bool]
) -> Answer:
    """Signs and sends one message. Raises NotSent, Stopped, and ConfigError without a secret."""
    timestamp = now_ms // 1000
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"fileq/{__version__}",
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature_header(known.secrets(now_ms), id, timestamp, body),
    }
    return sender.post(known.webhook.url, headers, body, is_stopped)


def retry_after_s(text: str, now_ms: int) -> float:
    """The seconds that a Retry-After header asks for: a number of seconds or a date. 0 if it can't be read."""
    if text.isascii() and text.strip().isdigit():
        return min(float(text), RETRY_AFTER_MAX_S)
    from email.utils import parsedate_to_datetime

    try:
        left_s = parsedate_to_datetime(text).timestamp() - now_ms / 1000
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return max(0.0, min(left_s, RETRY_AFTER_MAX_S))


def _failed(job: Job, answer: Answer | None, error: str) -> Failed:
    """No failure counts for a circuit breaker: one receiver must not stop the deliveries of others."""
    if answer is None:
        return Failed(f"not sent: {error}", "NotSent", is_sample=False)
    status, text = answer.status, printable(answer.text)
    error = f"{error}: {text}" if text else error
    refuses = 400 <= status < 500 and status not in _MAY_CHANGE
    is_permanent = status == GONE or (refuses and job.retries + 1 >= PERMANENT_AFTER)
    delay_s = RETRY_DELAYS_S[min(job.retries, len(RETRY_DELAYS_S) - 1)]
    after_s = max(delay_s, retry_after_s(answer.retry_after, time.time_ns() // 1_000_000))
    return Failed(error, f"HTTP{status}", is_permanent=is_permanent, after_s=after_s, is_sample=False)


def _payload_of(job: Job) -> DeliveryPayload:
    if job.payload is UNSET:
        raise ValueError("there is none")
    return msgspec.json.decode(job.payload, type=DeliveryPayload)


def _result(status: int | None, text: str) -> bytes:
    return msgspec.json.encode({"status": status, "answer": text})
