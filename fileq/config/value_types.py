"""The kinds of values that a setting can have: how each is read from text, written as text, and masked.

Every source delivers its values as text, YAML included: `password: 0123` and `watch: off` are used exactly as they
are written. So one `read` serves the file, the environment and --set. This module reads none of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Struct

from fileq.core.own_jobs import OWN_TYPES
from fileq.core.units import Rate, format_duration, format_size, parse_duration, parse_rate, parse_size

BUILT_IN_BROKERS = ("redis", "sqlite", "memory")
HIDDEN = "***"
_NOT_UTF8 = r"\ud800-\udfff"  # how a text holds bytes that are not UTF-8; only paths and globs may have them
_LARGEST = 10**12  # fits into a database column and a Redis counter; larger numbers are typing errors


class ValueKind(Struct, frozen=True):
    """One kind of value. The message of the ValueError that `read` raises says what is expected, such as "a whole
    number"; `write` returns what a person would write in YAML."""

    @property
    def expects(self) -> str:
        raise NotImplementedError

    def read(self, text: str) -> Any:
        raise NotImplementedError

    def write(self, value: Any) -> Any:
        return value

    def mask(self, text: str) -> str:
        """A valid text with its secrets hidden, for logs and listings."""
        return text

    def mask_invalid(self, text: str) -> str:
        """A text that `read` refused, with its secrets hidden, for the error message."""
        return self.mask(text)


class BooleanKind(ValueKind, frozen=True):
    expects = "true or false"

    def read(self, text: str) -> bool:
        word = text.strip().lower()
        if word in ("true", "yes", "on", "1"):
            return True
        if word in ("false", "no", "off", "0"):
            return False
        raise ValueError(self.expects)


class IntegerKind(ValueKind, frozen=True):
    minimum: int = 0
    maximum: int = _LARGEST

    @property
    def expects(self) -> str:
        if self.maximum < _LARGEST:
            return f"a whole number from {self.minimum} to {self.maximum}"
        return f"a whole number of at least {self.minimum}"

    def read(self, text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError(self.expects) from None
        if number > _LARGEST:
            raise ValueError(f"a whole number of at most {self.maximum}")
        if not self.minimum <= number <= self.maximum:
            raise ValueError(self.expects)
        return number


class FractionKind(ValueKind, frozen=True):
    allows_zero: bool = True
    allows_one: bool = True

    @property
    def expects(self) -> str:
        lower = "from 0" if self.allows_zero else "above 0"
        return f"a number {lower} to 1" if self.allows_one else f"a number {lower} to below 1"

    def read(self, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            raise ValueError(self.expects) from None
        if not 0 <= number <= 1 or (number == 0 and not self.allows_zero) or (number == 1 and not self.allows_one):
            raise ValueError(self.expects)
        return math.fabs(number)  # -0.0 is zero


class DurationKind(ValueKind, frozen=True):
    minimum: float = 0.0
    allows_zero: bool = False

    @property
    def expects(self) -> str:
        if self.minimum:
            return f"a duration of at least {format_duration(self.minimum)}"
        return "a duration such as 500ms, 30s or 1h30m" + ("" if self.allows_zero else ", above 0")

    def read(self, text: str) -> float:
        seconds = parse_duration(text)
        if seconds < self.minimum or (seconds == 0 and not self.allows_zero):
            raise ValueError(self.expects)
        return seconds

    def write(self, value: float) -> str:
        return format_duration(value)


class SizeKind(ValueKind, frozen=True):
    """Bytes, written with a unit. An empty text means no limit."""

    expects = 'a size such as 512MB, or "" for no limit'

    def read(self, text: str) -> int | None:
        if not text.strip():
            return None
        size = parse_size(text)
        if size == 0:
            raise ValueError(self.expects)
        return size

    def write(self, value: int | None) -> str:
        return "" if value is None else format_size(value)


class RateKind(ValueKind, frozen=True):
    expects = "a rate such as 10/s, 100/m or 1000/h, of at least 1"

    def read(self, text: str) -> Rate:
        return parse_rate(text)

    def write(self, value: Rate) -> str:
        return str(value)


class OptionalKind(ValueKind, frozen=True):
    """A value or none. None is written `~`, as in YAML, in environment variables too."""

    kind: ValueKind

    @property
    def expects(self) -> str:
        return f"{self.kind.expects}, or ~ for none"

    def read(self, text: str) -> Any:
        if text.strip() in ("~", "null", ""):
            return None
        try:
            return self.kind.read(text)
        except ValueError:
            raise ValueError(self.expects) from None

    def write(self, value: Any) -> Any:
        return None if value is None else self.kind.write(value)


class TextKind(ValueKind, frozen=True):
    pattern: str = r"(?s).*"
    expects: str = "text"

    def read(self, text: str) -> str:
        if not re.fullmatch(self.pattern, text) or "\0" in text:
            raise ValueError(self.expects)
        return text


UTF8 = TextKind(rf"(?s)[^{_NOT_UTF8}]*", "text in UTF-8")


class KeyNameKind(TextKind, frozen=True):
    """The name of a key in the broker. A name that is not set follows `redis.prefix`."""

    pattern: str = rf"[^%{_NOT_UTF8}]+"
    expects: str = "a key name in UTF-8 without %"


class KeyPatternKind(KeyNameKind, frozen=True):
    pattern: str = rf"[^%{_NOT_UTF8}]*%s[^%{_NOT_UTF8}]*"
    expects: str = "a key name with exactly one %s, where the worker ID goes"


class SecretKind(TextKind, frozen=True):
    """A secret, or empty."""

    pattern: str = UTF8.pattern
    expects: str = UTF8.expects
    is_accepted: Callable[[str], bool] = lambda text: True

    def read(self, text: str) -> str:
        if text and not self.is_accepted(text):
            raise ValueError(self.expects)
        return super().read(text)

    def mask(self, text: str) -> str:
        return HIDDEN if text else ""


class ChoiceKind(ValueKind, frozen=True):
    words: tuple[str, ...]

    @property
    def expects(self) -> str:
        return one_of(self.words)

    def read(self, text: str) -> str:
        word = text.strip().lower()
        if word not in self.words:
            raise ValueError(self.expects)
        return word


class AddressKind(ValueKind, frozen=True):
    """host:port, or empty."""

    expects = "host:port, such as localhost:6379 or [::1]:6379"

    def read(self, text: str) -> str:
        if text and split_address(text) is None:
            raise ValueError(self.expects)
        return text

    def mask(self, text: str) -> str:
        return mask_credentials(text)


class UrlKind(ValueKind, frozen=True):
    """A URL with one of these schemes, or empty. Several hosts are separated by commas."""

    schemes: tuple[str, ...]
    example: str
    hides_query: bool = False  # all of it, not only its passwords

    @property
    def expects(self) -> str:
        return f"a URL such as {self.example} ({', '.join(scheme + '://' for scheme in self.schemes)})"

    def read(self, text: str) -> str:
        if not text:
            return text
        scheme, separator, rest = text.partition("://")
        hosts, _, path = re.split(r"[?#]", rest)[0].partition("/")
        if not separator or scheme not in self.schemes or re.search(f"[{_NOT_UTF8}]", text):
            raise ValueError(self.expects)
        if scheme == "unix":
            is_complete = bool(path)
        else:
            is_complete = all(
                split_address(host) or split_address(f"{host}:1") for host in hosts.rpartition("@")[2].split(",")
            )
        if not is_complete or (scheme.endswith("sentinel") and not path.partition("/")[0]):
            raise ValueError(f"{self.expects}; percent-encode special characters in its credentials")
        if not _names_database(scheme, path, rest):
            raise ValueError(f"{self.expects}; its database is a number, such as the 0 there")
        return text

    def mask(self, text: str) -> str:
        shown = mask_credentials(text)
        return re.sub(r"(?s)\?.+", f"?{HIDDEN}", shown) if self.hides_query else shown

    def mask_invalid(self, text: str) -> str:
        # In a malformed URL a password can be anywhere.
        scheme, separator, _ = text.partition("://")
        return f"{scheme}{separator}{HIDDEN}" if separator else HIDDEN


def _names_database(scheme: str, path: str, rest: str) -> bool:
    """Whether a URL of Redis names its database by a number, or names none. A cluster has only the database 0."""
    if scheme not in ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster"):
        return True
    if scheme == "unix":
        query = rest.partition("#")[0].partition("?")[2]
        name = dict(part.partition("=")[::2] for part in query.split("&")).get("db", "")
    else:
        name = (path.partition("/")[2] if scheme == "redis+sentinel" else path).strip("/")
    is_number = re.fullmatch("[0-9]{0,9}", name) is not None
    return is_number and not (scheme == "redis+cluster" and name.strip("0"))


class BrokerNameKind(ValueKind, frozen=True):
    """The name of a built-in broker, of a broker from an installed package, or empty."""

    @property
    def expects(self) -> str:
        return one_of((*BUILT_IN_BROKERS, *installed_brokers()))

    def read(self, text: str) -> str:
        name = text.strip()
        if name in ("", *BUILT_IN_BROKERS) or name in installed_brokers():
            return name
        raise ValueError(self.expects)


class ExitOrExceptionKind(ValueKind, frozen=True):
    expects = "an exit code from 1 to 255 or the name of an exception"

    def read(self, text: str) -> int | str:
        if text.isdecimal() and 1 <= int(text[:9]) <= 255:
            return int(text)
        if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", text):
            return text
        raise ValueError(self.expects)


def one_of(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def installed_brokers() -> tuple[str, ...]:
    """Names in the entry point group `fileq.brokers`. Slow, so only called for a name that is not built in."""
    from importlib.metadata import entry_points

    return tuple(sorted(entry_points(group="fileq.brokers").names - {*BUILT_IN_BROKERS}))


def split_address(text: str) -> tuple[str, int] | None:
    match = re.fullmatch(rf"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:/@\[\]{_NOT_UTF8}]+)):(\d{{1,5}})", text)
    if match is None or not 0 < int(match[3]) <= 65535:
        return None
    return match[1] or match[2], int(match[3])


def mask_credentials(url: str) -> str:
    """The URL without user, password, password parameters and fragment. In doubt it hides more."""
    url = re.sub(r"(?s)^([A-Za-z][\w+.-]*://)?.*@", rf"\1{HIDDEN}@", url)
    url = re.sub(r"(?s)#.+", f"#{HIDDEN}", url)  # has no meaning here, so it may be part of a password
    return re.sub(r"(?i)([?&][^=&#]*password[^=&#]*=)[^&#]*", rf"\1{HIDDEN}", url)


# A kind of value with its limits, for settings that share it.
Seconds: TypeAlias = Annotated[float, DurationKind()]
SecondsOrZero: TypeAlias = Annotated[float, DurationKind(allows_zero=True)]
Count: TypeAlias = Annotated[int, IntegerKind(minimum=1)]
SlotCount: TypeAlias = Annotated[int, IntegerKind(minimum=1, maximum=1024)]  # every slot is a record that others read
CountOrZero: TypeAlias = Annotated[int, IntegerKind()]
Port: TypeAlias = Annotated[int, IntegerKind(maximum=65535)]
FilledUtf8: TypeAlias = Annotated[str, TextKind(rf"(?s)[^{_NOT_UTF8}]+", "text in UTF-8 that is not empty")]
GlobInUtf8: TypeAlias = Annotated[str, TextKind(rf"(?s)[^{_NOT_UTF8}]+", "a glob in UTF-8 such as **/*.pdf")]
Filled: TypeAlias = Annotated[str, TextKind(r"(?s).+", "text that is not empty")]
Directory: TypeAlias = Annotated[str, TextKind(r"(?s).+", "the path of one directory")]
Glob: TypeAlias = Annotated[
    str,
    TextKind(
        r"(?s)(?!/|\.{1,2}/|~/).+",  # none of these could match a file
        "a glob such as **/*.pdf, relative to the scanned directory, without /, ./, ../ or ~/ at its beginning",
    ),
]
Extension: TypeAlias = Annotated[str, TextKind(r"\.[^/]+", "an extension such as .pdf")]
Module: TypeAlias = Annotated[str, TextKind(r"[A-Za-z_]\w*(\.\w+)*", "a module such as package.module")]
Function: TypeAlias = Annotated[str, TextKind(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", "package.module:function")]
After: TypeAlias = Annotated[str, TextKind(r"(?s)keep|delete|move:\S(.*\S)?", "keep, delete or move:DIR")]
MOVE = "move:"
JobType: TypeAlias = Annotated[
    str,
    TextKind(
        rf"(?!{re.escape(OWN_TYPES)})(?=[^{_NOT_UTF8}]*$)\S(.{{0,98}}\S)?",
        f"the type of a job, up to 100 characters in UTF-8; types that begin with '{OWN_TYPES}' are fileq's own",
    ),
]
Isolation: TypeAlias = Literal["process", "thread"]
Priority: TypeAlias = Annotated[
    str,
    TextKind(
        r"(?!(scheduled|dead_letter|processing|completed|cancelled)\Z)[A-Za-z0-9_-]+",
        "a name of letters, digits, _ and -, other than scheduled, dead_letter, processing, completed, cancelled",
    ),
]
REDIS_URL = UrlKind(("redis", "rediss", "unix", "redis+sentinel", "redis+cluster"), "redis://localhost:6379/0")
OTLP_URL = UrlKind(("http", "https", "grpc"), "http://localhost:4318", hides_query=True)
