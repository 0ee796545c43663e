"""The types of settings that several keys share: a kind of value with its limits."""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias

from fileq.config.kinds import DurationKind, IntegerKind, TextKind, UrlKind
from fileq.core.own_jobs import OWN_TYPES

Seconds: TypeAlias = Annotated[float, DurationKind()]
SecondsOrZero: TypeAlias = Annotated[float, DurationKind(allows_zero=True)]
Count: TypeAlias = Annotated[int, IntegerKind(minimum=1)]
CountOrZero: TypeAlias = Annotated[int, IntegerKind()]
Port: TypeAlias = Annotated[int, IntegerKind(maximum=65535)]
Filled: TypeAlias = Annotated[str, TextKind(r"(?s).+", "text that is not empty")]
Directory: TypeAlias = Annotated[str, TextKind(r"(?s).+", "the path of one directory")]
Glob: TypeAlias = Annotated[str, TextKind(r"(?s).+", "a glob such as **/*.pdf")]
Extension: TypeAlias = Annotated[str, TextKind(r"\.[^/]+", "an extension such as .pdf")]
Module: TypeAlias = Annotated[str, TextKind(r"[A-Za-z_]\w*(\.\w+)*", "a module such as package.module")]
Function: TypeAlias = Annotated[str, TextKind(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", "package.module:function")]
After: TypeAlias = Annotated[str, TextKind(r"(?s)keep|delete|move:\S(.*\S)?", "keep, delete or move:DIR")]
MOVE = "move:"
JobType: TypeAlias = Annotated[
    str,
    TextKind(
        rf"(?!{re.escape(OWN_TYPES)})\S(.{{0,98}}\S)?",
        f"the type of a job, up to 100 characters; types that begin with '{OWN_TYPES}' are fileq's own",
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
