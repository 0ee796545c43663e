"""The kinds of values a setting can have: how each is read from text, written back, and hidden.

Every source hands its values over as text (YAML too: `password: 0123` and `watch: off` are taken as they
are written), so one `read` serves the file, the environment and --set.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from fileq.config.units import format_duration, format_size, parse_duration, parse_size

BUILT_IN_BROKERS = ("redis", "sqlite", "memory")
HIDDEN = "***"
_LARGEST = 10**12  # fits into a database column and a Redis counter, and nobody means more


class Wrong(ValueError):
    """A text that is no such value; the message is what it must be instead, as in "a whole number"."""


class Leaf(Struct, frozen=True):
    """One value. `read` raises Wrong; `write` gives what a person would have written in YAML."""

    @property
    def expects(self) -> str:
        raise NotImplementedError

    def read(self, text: str) -> Any:
        raise NotImplementedError

    def write(self, value: Any) -> Any:
        return value

    def mask(self, text: str) -> str:
        """A good text, fit for logs and listings."""
        return text

    def mask_wrong(self, text: str) -> str:
        """A text that `read` refused, fit for the error message."""
        return self.mask(text)


class Flag(Leaf, frozen=True):
    expects = "true or false"

    def read(self, text: str) -> bool:
        word = text.strip().lower()
        if word in ("true", "yes", "on", "1"):
            return True
        if word in ("false", "no", "off", "0"):
            return False
        raise Wrong(self.expects)


class Whole(Leaf, frozen=True):
    at_least: int = 0
    at_most: int = _LARGEST

    @property
    def expects(self) -> str:
        if self.at_most < _LARGEST:
            return f"a whole number from {self.at_least} to {self.at_most}"
        return f"a whole number of at least {self.at_least}"

    def read(self, text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise Wrong(self.expects) from None
        if number > _LARGEST:
            raise Wrong(f"a whole number of at most {self.at_most}")
        if not self.at_least <= number <= self.at_most:
            raise Wrong(self.expects)
        return number


class Share(Leaf, frozen=True):
    """A number between 0 and 1; either end can be left out."""

    zero: bool = True
    one: bool = True

    @property
    def expects(self) -> str:
        lower = "from 0" if self.zero else "above 0"
        return f"a number {lower} to 1" if self.one else f"a number {lower} to below 1"

    def read(self, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            raise Wrong(self.expects) from None
        if not 0 <= number <= 1 or (number == 0 and not self.zero) or (number == 1 and not self.one):
            raise Wrong(self.expects)
        return math.fabs(number)  # -0.0 is zero


class Duration(Leaf, frozen=True):
    """Seconds, written with their unit."""

    at_least: float = 0.0
    zero: bool = False

    @property
    def expects(self) -> str:
        if self.at_least:
            return f"a duration of at least {format_duration(self.at_least)}"
        return "a duration such as 500ms, 30s or 1h30m" + ("" if self.zero else ", above 0")

    def read(self, text: str) -> float:
        try:
            seconds = parse_duration(text)
        except ValueError as error:
            raise Wrong(str(error)) from None
        if seconds < self.at_least or (seconds == 0 and not self.zero):
            raise Wrong(self.expects)
        return seconds

    def write(self, value: float) -> str:
        return format_duration(value)


class Size(Leaf, frozen=True):
    """Bytes, written with their unit; an empty text is no limit."""

    expects = 'a size such as 512MB, or "" for no limit'

    def read(self, text: str) -> int | None:
        if not text.strip():
            return None
        try:
            size = parse_size(text)
        except ValueError as error:
            raise Wrong(str(error)) from None
        if size == 0:
            raise Wrong(self.expects)
        return size

    def write(self, value: int | None) -> str:
        return "" if value is None else format_size(value)


class Maybe(Leaf, frozen=True):
    """A value, or none: `~`, as in YAML, also where the text comes from a variable."""

    kind: Leaf

    @property
    def expects(self) -> str:
        return f"{self.kind.expects}, or ~ for none"

    def read(self, text: str) -> Any:
        if text.strip() in ("~", "null", ""):
            return None
        try:
            return self.kind.read(text)
        except Wrong:
            raise Wrong(self.expects) from None

    def write(self, value: Any) -> Any:
        return None if value is None else self.kind.write(value)


class Text(Leaf, frozen=True):
    """A text that matches a pattern as a whole."""

    pattern: str = r"(?s).*"
    says: str = "text"

    @property
    def expects(self) -> str:
        return self.says

    def read(self, text: str) -> str:
        if not re.fullmatch(self.pattern, text) or "\0" in text:
            raise Wrong(self.expects)
        return text


class Name(Text, frozen=True):
    """The name of a key in the broker; while unset it follows `redis.prefix`."""

    pattern: str = r"[^%]+"
    says: str = "a key name without %"


class NamePattern(Name, frozen=True):
    """A name with a place for the worker ID."""

    pattern: str = r"[^%]*%s[^%]*"
    says: str = "a key name with exactly one %s, where the worker ID goes"


class Secret(Text, frozen=True):
    def mask(self, text: str) -> str:
        return HIDDEN if text else ""


class Choice(Leaf, frozen=True):
    words: tuple[str, ...]

    @property
    def expects(self) -> str:
        return one_of(self.words)

    def read(self, text: str) -> str:
        word = text.strip().lower()
        if word not in self.words:
            raise Wrong(self.expects)
        return word


class Address(Leaf, frozen=True):
    """host:port, or nothing."""

    expects = "host:port, such as localhost:6379 or [::1]:6379"

    def read(self, text: str) -> str:
        if text and split_address(text) is None:
            raise Wrong(self.expects)
        return text

    def mask(self, text: str) -> str:
        return mask_credentials(text)


class Url(Leaf, frozen=True):
    """A URL of one of these schemes, or nothing. Several hosts are separated by commas."""

    schemes: tuple[str, ...]
    example: str

    @property
    def expects(self) -> str:
        return f"a URL such as {self.example} ({', '.join(scheme + '://' for scheme in self.schemes)})"

    def read(self, text: str) -> str:
        if not text:
            return text
        scheme, separator, rest = text.partition("://")
        hosts, _, path = re.split(r"[?#]", rest)[0].partition("/")
        if not separator or scheme not in self.schemes:
            raise Wrong(self.expects)
        if scheme == "unix":
            is_complete = bool(path)
        else:
            is_complete = all(
                split_address(host) or split_address(f"{host}:1") for host in hosts.rpartition("@")[2].split(",")
            )
        if not is_complete or (scheme.endswith("sentinel") and not path.partition("/")[0]):
            raise Wrong(f"{self.expects}; percent-encode special characters in its credentials")
        return text

    def mask(self, text: str) -> str:
        return mask_credentials(text)

    def mask_wrong(self, text: str) -> str:
        # In a malformed URL a password can sit anywhere.
        scheme, separator, _ = text.partition("://")
        return f"{scheme}{separator}{HIDDEN}" if separator else HIDDEN


class BrokerName(Leaf, frozen=True):
    """A built-in broker, one that an installed package brings along, or nothing."""

    @property
    def expects(self) -> str:
        return one_of((*BUILT_IN_BROKERS, *installed_brokers()))

    def read(self, text: str) -> str:
        name = text.strip()
        if name in ("", *BUILT_IN_BROKERS) or name in installed_brokers():
            return name
        raise Wrong(self.expects)


class ExitOrException(Leaf, frozen=True):
    """What a handler can end with: an exit code of a command, or the name of an exception."""

    expects = "an exit code from 1 to 255 or the name of an exception"

    def read(self, text: str) -> int | str:
        if text.isdecimal() and 1 <= int(text[:9]) <= 255:
            return int(text)
        if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", text):
            return text
        raise Wrong(self.expects)


def one_of(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def installed_brokers() -> tuple[str, ...]:
    """Names in the entry point group `fileq.brokers`; looked up only when someone names one."""
    from importlib.metadata import entry_points

    return tuple(sorted(entry_points(group="fileq.brokers").names - {*BUILT_IN_BROKERS}))


def split_address(text: str) -> tuple[str, int] | None:
    """Host and port of `host:port`; None if it is something else."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:/@\[\]]+)):(\d{1,5})", text)
    if match is None or not 0 < int(match[3]) <= 65535:
        return None
    return match[1] or match[2], int(match[3])


def mask_credentials(url: str) -> str:
    """The URL without user, password and password parameters; rather too much is hidden than too little."""
    url = re.sub(r"(?s)^([A-Za-z][\w+.-]*://)?.*@", rf"\1{HIDDEN}@", url)
    url = re.sub(r"(?s)#.+", f"#{HIDDEN}", url)  # means nothing here, so nobody knows what it is
    return re.sub(r"(?i)([?&][^=&#]*password[^=&#]*=)[^&#]*", rf"\1{HIDDEN}", url)
