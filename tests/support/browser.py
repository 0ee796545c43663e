"""A real Chromium without a window, driven by its own protocol over a WebSocket.

It notes what a user would see in the developer tools: errors of scripts, violations of the Content-Security-Policy, and
requests that leave the server under test. Chromium keeps its files in a directory that is removed with it.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Message, Ping, Request, TextMessage

from tests.support.waiting import wait_until

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--no-first-run",
    "--hide-scrollbars",
    "--mute-audio",
    "--remote-debugging-port=0",
)
WAIT_S = 20.0


class BrowserError(AssertionError):
    """The page did not do what the test asked for."""


class Socket:
    """A WebSocket of a client, blocking."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=WAIT_S)
        self._protocol = WSConnection(ConnectionType.CLIENT)
        self._socket.sendall(self._protocol.send(Request(host=parts.netloc, target=parts.path)))
        self._text: list[str] = []
        self._messages: list[str] = []
        self._is_open = False
        while not self._is_open:
            self._read()

    def send(self, text: str) -> None:
        self._socket.sendall(self._protocol.send(Message(data=text)))

    def receive(self, timeout_s: float) -> str | None:
        """The next message; None if there is none in this time."""
        self._socket.settimeout(max(timeout_s, 0.001))
        try:
            while not self._messages:
                self._read()
        except TimeoutError:
            return None
        return self._messages.pop(0)

    def close(self) -> None:
        self._socket.close()

    def _read(self) -> None:
        data = self._socket.recv(1 << 20)
        if not data:
            raise BrowserError("the browser closed its connection")
        self._protocol.receive_data(data)
        for event in self._protocol.events():
            if isinstance(event, AcceptConnection):
                self._is_open = True
            elif isinstance(event, TextMessage):
                self._text.append(event.data)
                if event.message_finished:
                    self._messages.append("".join(self._text))
                    self._text.clear()
            elif isinstance(event, Ping):
                self._socket.sendall(self._protocol.send(event.response()))
            elif isinstance(event, CloseConnection):
                raise BrowserError("the browser closed the page")


class Tab:
    """One page. `problems` are errors of scripts, violations of the policy, and requests to other hosts."""

    def __init__(self, url: str) -> None:
        self._socket = Socket(url)
        self._numbers = itertools.count(1)
        self.problems: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        until_s = time.monotonic() + WAIT_S
        while (left_s := until_s - time.monotonic()) > 0:
            message = self._next(left_s)
            if message is not None and message.get("id") == number:
                if "error" in message:
                    raise BrowserError(f"{method}: {message['error']['message']}")
                result: dict[str, Any] = message["result"]
                return result
        raise BrowserError(f"{method} was not answered within {WAIT_S} s")

    def open(self, url: str) -> None:
        """Returns when the page and its scripts are loaded."""
        answer = self.call("Page.navigate", url=url)
        if "errorText" in answer:
            raise BrowserError(f"{url}: {answer['errorText']}")
        self.until("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise BrowserError(f"{script}: {details.get('exception', {}).get('description', details['text'])}")
        return answer["result"].get("value")

    def until(self, script: str, timeout_s: float = WAIT_S) -> Any:
        """Waits until the expression is true; returns its value."""

        def holds() -> Any:
            with contextlib.suppress(BrowserError):  # the page is just being replaced
                return self.run(script)
            return None

        return wait_until(holds, timeout_s, script)

    def text(self, selector: str = "body") -> str:
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def until_text(self, text: str, selector: str = "body", timeout_s: float = WAIT_S) -> None:
        element = f"(document.querySelector({json.dumps(selector)})?.innerText ?? '')"
        try:
            self.until(f"{element}.includes({json.dumps(text)})", timeout_s)
        except TimeoutError:
            raise BrowserError(f"{text!r} is not in {selector} after {timeout_s} s:\n{self.text(selector)}") from None

    def click(self, selector: str, text: str = "") -> None:
        """Clicks the first element that is shown, enabled and has the text."""
        script = f"""(() => {{
            const all = [...document.querySelectorAll({json.dumps(selector)})];
            const fits = (one) => one.innerText.includes({json.dumps(text)}) && one.offsetParent && !one.disabled;
            const found = all.find(fits);
            if (found) found.click();
            return !!found;
        }})()"""
        self.until(script)

    def fill(self, selector: str, value: str) -> None:
        """Types into a field, as far as the page can tell."""
        script = f"""(() => {{
            const field = document.querySelector({json.dumps(selector)});
            if (!field) return false;
            field.focus();
            field.value = {json.dumps(value)};
            field.dispatchEvent(new Event("input", {{bubbles: true}}));
            field.dispatchEvent(new Event("change", {{bubbles: true}}));
            return true;
        }})()"""
        self.until(script)

    def press(self, key: str) -> None:
        """One key on the keyboard, such as `g` or `?`."""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def resize(self, width: int, height: int, *, is_mobile: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_mobile
        )

    def prefer(self, scheme: str) -> None:
        """The colour scheme of the system: dark or light."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path: Path, *, is_whole: bool = True) -> None:
        """A PNG of the page: its whole height, or the part that is in view."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def drain(self) -> None:
        """Takes what the browser has reported so far."""
        while self._next(0.05) is not None:
            pass

    def close(self) -> None:
        self._socket.close()

    def _next(self, timeout_s: float) -> dict[str, Any] | None:
        text = self._socket.receive(timeout_s)
        if text is None:
            return None
        message: dict[str, Any] = json.loads(text)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        kind = message.get("method")
        if kind == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif kind == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif kind == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.problems.append(" ".join(str(one.get("value", "")) for one in params["args"]))
        elif kind == "Network.requestWillBeSent":
            url: str = params["request"]["url"]
            self.requests.append(url)
            if urlsplit(url).hostname not in ("127.0.0.1", None) and not url.startswith("data:"):
                self.problems.append(f"a request to another host: {url}")


@contextlib.contextmanager
def chromium(program: str) -> Iterator[Tab]:
    """A browser with one empty page."""
    directory = Path(tempfile.mkdtemp(prefix="fileq-chromium-"))
    command = [program, *FLAGS, f"--user-data-dir={directory}", "about:blank"]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        port_file = directory / "DevToolsActivePort"
        port = wait_until(lambda: port_file.exists() and port_file.read_text().splitlines()[:1], 60, "Chromium")[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=WAIT_S) as answer:
            [page] = [one for one in json.load(answer) if one["type"] == "page"]
        tab = Tab(page["webSocketDebuggerUrl"])
        try:
            yield tab
        finally:
            tab.close()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(WAIT_S)
        shutil.rmtree(directory, ignore_errors=True)
