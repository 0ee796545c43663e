"""One attempt of a delivery, and its request: the name is resolved once, every address is checked, and the connection
goes to a checked address. No redirect is followed and no proxy variable is read.

The URL is a text that others may have chosen, and a name may resolve differently each time it is asked for. So the
address that was checked is the one that is connected to; the name stays in TLS and in the Host header. One time limit
holds for everything together: a receiver that sends a byte now and then cannot extend it. Nothing waits for longer than
SLICE_S at a time, so that a delivery that is cancelled ends then, and its connection is closed.
"""

from __future__ import annotations

import errno
import http.client
import io
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import cached_property, partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, TypeAlias, TypeVar

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

T = TypeVar("T")
Resolve: TypeAlias = Callable[[str, int], Sequence[str]]
Connect: TypeAlias = Callable[[tuple[str, int], "Deadline"], socket.socket]


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


def connection_to(address: tuple[str, int], deadline: Deadline) -> socket.socket:
    """A connection to an address. Raises OSError, and what Deadline raises."""
    connection = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    try:
        connection.setblocking(False)
        problem = connection.connect_ex(address)
        if problem == errno.EINPROGRESS:
            poll = select.poll()
            poll.register(connection, select.POLLOUT)
            while not poll.poll(deadline.slice_s() * 1000):
                pass
            problem = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if problem:
            raise OSError(problem, os.strerror(problem))
        return connection
    except BaseException:
        connection.close()
        raise


class Sender(Struct, dict=True, eq=False):
    """`settings.allow_*` say where it may send. `resolve` and `connect` are replaced in tests. `tls` makes the context
    of a connection."""

    settings: WebhookSettings
    timeout_s: float = TIMEOUT_S
    resolve: Resolve = addresses_of
    connect: Connect = connection_to
    tls: Callable[[], ssl.SSLContext] = ssl.create_default_context

    @cached_property
    def _tls_context(self) -> ssl.SSLContext:
        return self.tls()

    def post(
        self, url: str, headers: Mapping[str, str], body: bytes, is_stopped: Callable[[], bool] = lambda: False
    ) -> Answer:
        """The receiver's answer, of any status. Raises NotSent, and Stopped soon after `is_stopped`."""
        deadline = Deadline(self.timeout_s, is_stopped)
        target = self._target(url)
        try:
            addresses = self._addresses(target, deadline)
            connection = self._open(target, addresses, deadline)
        except (OSError, ValueError) as error:
            raise NotSent(_described(error, target, deadline)) from error
        try:
            return _exchange(_DeadlineSocket(connection, deadline), target, headers, body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NotSent(_described(error, target, deadline)) from error
        finally:
            connection.close()

    def _target(self, url: str) -> Target:
        """Checked again at every delivery: the rules may have changed since the webhook was defined."""
        if problem := url_problem(url, allow_http=self.settings.allow_http, allow_ports=self.settings.allow_ports):
            raise NotSent(f"the URL {problem}")
        try:
            return parse_target(url)
        except InvalidUrl as error:
            raise NotSent(f"the URL {error}") from error

    def _addresses(self, target: Target, deadline: Deadline) -> list[str]:
        found = _within(deadline, lambda: list(dict.fromkeys(self.resolve(target.host, target.port))))
        if not found:
            raise NotSent(f"{target.host} has no address")
        allowed = networks(self.settings.allow_networks)
        for address in found:
            # One wrong address is enough: which one is used must not depend on luck.
            if problem := blocked_because(address, allowed):
                raise NotSent(f"{target.host} resolves to an address that is not allowed: {problem}")
        return found[:ADDRESSES_MAX]

    def _open(self, target: Target, addresses: Sequence[str], deadline: Deadline) -> socket.socket:
        for index, address in enumerate(addresses):
            try:
                # An address that does not answer leaves time for the next one.
                share = deadline.half() if index + 1 < len(addresses) else deadline
                connection = self.connect((address, target.port), share)
                break
            except OSError:
                if index + 1 == len(addresses):
                    raise
        if target.scheme != "https":
            return connection
        try:
            made = self._tls_context
            secured = made.wrap_socket(connection, server_hostname=target.host, do_handshake_on_connect=False)
        except BaseException:
            connection.close()
            raise
        try:
            deadline.repeat(secured, secured.do_handshake)
            return secured
        except BaseException:
            secured.close()
            raise


class Deadline:
    def __init__(self, timeout_s: float, is_stopped: Callable[[], bool]) -> None:
        self.timeout_s = timeout_s
        self._is_stopped = is_stopped
        self._ends_s = time.monotonic() + timeout_s

    def slice_s(self) -> float:
        """How long to wait at a time. Raises TimeoutError if no time is left, and Stopped."""
        if self._is_stopped():
            raise Stopped
        left_s = self._ends_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return min(SLICE_S, left_s)

    def half(self) -> Deadline:
        """Ends after half of the time that is left."""
        return Deadline((self._ends_s - time.monotonic()) / 2, self._is_stopped)

    def repeat(self, connection: socket.socket, call: Callable[[], T]) -> T:
        """What a call on this connection returns. It must be one that can be repeated after a timeout."""
        while True:
            connection.settimeout(self.slice_s())
            try:
                return call()
            except TimeoutError:
                continue


class _DeadlineSocket(io.RawIOBase):
    """What http.client needs of a socket, with one time limit and one size limit for the whole answer: it ends after
    ANSWER_MAX bytes, as if the receiver had closed the connection."""

    def __init__(self, connection: socket.socket, deadline: Deadline) -> None:
        self._connection = connection
        self._deadline = deadline
        self._left = ANSWER_MAX

    def sendall(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            # With TLS a repeat must send the same bytes, so they are cut only by what was sent.
            left = left[self._deadline.repeat(self._connection, partial(self._connection.send, left)) :]

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def close(self) -> None:
        """The caller of the exchange closes the connection."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            return 0
        part = memoryview(buffer)[: self._left]
        count = self._deadline.repeat(self._connection, partial(self._connection.recv_into, part))
        self._left -= count
        return count


def _exchange(connection: _DeadlineSocket, target: Target, headers: Mapping[str, str], body: bytes) -> Answer:
    request = http.client.HTTPConnection(target.host, target.port)
    request.sock = connection  # never connects by itself
    request.auto_open = 0
    request.putrequest("POST", target.path, skip_host=True, skip_accept_encoding=True)
    for name, value in {"Host": target.authority, **headers, "Content-Length": str(len(body))}.items():
        request.putheader(name, value)
    request.putheader("Connection", "close")
    request.endheaders(body)
    response = request.getresponse()
    try:
        text = response.read(ANSWER_MAX)
    except http.client.IncompleteRead as error:
        text = error.partial
    except (OSError, Stopped):
        # The status says whether the delivery was received. A body that does not end does not change that.
        text = b""
    shown = text[: 4 * ANSWER_KEPT].decode(errors="replace")[:ANSWER_KEPT]
    return Answer(response.status, shown, response.getheader("Retry-After") or "")


def _within(deadline: Deadline, call: Callable[[], list[str]]) -> list[str]:
    """The result of a call that has no time limit of its own: resolving a name. The thread of one that is too slow, or
    of a delivery that is cancelled, is left to itself; it ends when the resolver gives up."""
    found = Future[list[str]]()

    def run() -> None:
        try:
            found.set_result(call())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, name="resolver", daemon=True).start()
    while not found.done():
        wait([found], deadline.slice_s())
    return found.result()


def _described(error: Exception, target: Target, deadline: Deadline) -> str:
    if isinstance(error, TimeoutError):
        return f"{target.host} did not answer within {deadline.timeout_s:g}s"
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
        return Failed(error, "NotSent", is_sample=False)
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
