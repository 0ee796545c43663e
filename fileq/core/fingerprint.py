"""The fingerprint of an error: equal for jobs that died of the same cause, so that operators see groups and not jobs.

It covers the kind of the error, the handler, the first line of the message without what differs from job to job, and
the innermost frame of the user's code. Of a command's output it covers the first and the last line: many programs begin
with the same line whatever went wrong, and others end with one. Pure: the same arguments give the same digits in every
process and release, and records keep them. So a change of a rule here separates new dead jobs from the old ones of the
same cause.
"""

from __future__ import annotations

import re

from fileq.core.outcome import kind_of

_PLACEHOLDER = re.compile("<(?:text|path|id|address)>|#")  # in what wording() returns
_WORD = re.compile(r"[^\W\d_]{2,}")
LENGTH = 12  # hexadecimal digits
_LONGEST_LINE = 400  # characters of a message that are looked at

_OF_A_COMMAND = re.compile(r"[^:|]+ (?:exited with \d+|was killed by (?:signal )?\w+): ")
_JOINS_LINES = " | "  # fileq joins the lines of a message with this
_SAYS_NOTHING = ("Traceback (most recent call last):", "…")  # a first line of these: no cause, or only its end was kept

# What fileq appends to the error of a handler: ` (at jobs.py:12 in convert, parser.py:7 in read)`.
_LOCATION = re.compile(r" \(at (?=[^()\n]*:\d+ in )([^()\n]*)\)")
_FRAME = re.compile(r'^[ |]*File "([^"\n]+)", line \d+, in (.+)$', re.MULTILINE)
# Frames of the standard library and of installed packages, on whichever machine the worker runs.
_NOT_THE_USERS = re.compile(r"^<frozen |/(?:site|dist)-packages/|/lib(?:64)?/python3(?:\.\d+)?t?/")

_OWN_FILE = "\0"  # stands for the name of the job's own file, which may contain blanks
_QUOTES = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|\u201c[^\u201d]*\u201d|\u2018[^\u2019]*\u2019"
_IN_A_PATH = r"[^\s:,;'\"()\[\]{}<>|=]"
# Applied one after the other. What stays is the wording of the message.
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    # Not within a word: an apostrophe is no quote.
    (re.compile(rf"(?<!\w)[bB]?(?:{_QUOTES})(?!\w)"), "<text>"),
    (re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*://[^\s/'\"]+)/[^\s'\"<>)\]]*"), r"\1<path>"),
    (re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "<address>"),
    (re.compile(rf"(?<![\w.~/>])(?:~|\.\.?)?/(?!/){_IN_A_PATH}+"), "<path>"),
    (re.compile(r"\b[A-Za-z]:\\[^\s:,;'\"]+"), "<path>"),
    (re.compile(r"(?<![\w/])[\w.@+-]+(?:/[\w.@+-]+)*/[\w@+-]*\.\w+"), "<path>"),  # a/b.pdf, but not read/write
    (re.compile(rf"(?<![^\s'\"])[^\s'\"]*{_OWN_FILE}"), "<path>"),
    (re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "<id>"),
    (re.compile(r"\b0[xX][0-9a-fA-F]+\b"), "<id>"),
    (re.compile(r"\b(?=\d*[a-fA-F])(?=[a-fA-F]*\d)[0-9a-fA-F]{7,}\b"), "<id>"),
    (re.compile(r"\b(?=\d*[A-Za-z])(?=[A-Za-z]*\d)[0-9A-Za-z]{16,}\b"), "<id>"),
    (re.compile(r"(?<!\w)[-+](?=\.?\d)"), ""),
    (re.compile(r"\.?\d+(?:[.,:_]\d+)*(?:[eE][-+]?\d+)?(?:[A-Za-zµ]{1,3}\b|%)?"), "#"),  # with its unit: 20ms, 3MB
    (re.compile(r"#(?: #)+"), "#"),  # 1m 30s
    (re.compile(r"\s+"), " "),
)


def fingerprint(error: str, handler: str = "", traceback: str = "", path: str = "") -> str:
    """12 hexadecimal digits for an error as a record keeps it. `handler` is the type of the job or, of a file's job,
    the name of its route. `path` is that of the job's file."""
    import hashlib  # it loads OpenSSL, and commands should start fast

    facts = (kind_of(error), handler, wording(error, path), innermost_frame(traceback) or _frame_in(error))
    return hashlib.sha256("\n".join(facts).encode(errors="backslashreplace")).hexdigest()[:LENGTH]


def wording(error: str, path: str = "") -> str:
    """The first line of the message, with paths, ids, numbers and quoted texts replaced; of a command's output the
    first and the last line."""
    line = _LOCATION.sub("", error).strip().split("\n", 1)[0]
    first, *others = line.split(_JOINS_LINES)
    if others and (command := _OF_A_COMMAND.match(first)) is not None:
        begins = first[command.end() :].startswith(_SAYS_NOTHING)
        first = command[0] if begins else f"{first[: _LONGEST_LINE // 2]}{_JOINS_LINES}"
        first += others[-1]
    line = first[:_LONGEST_LINE]
    for own in (path, path.rpartition("/")[2]):
        if len(own) > 2:
            line = line.replace(own, _OWN_FILE)
    for pattern, replacement in _RULES:
        line = pattern.sub(replacement, line)
    return line.strip()


def common_words(error: str, path: str = "") -> str:
    """What all errors of this wording say, with `…` for the rest; "" if nothing differs, or if little is said, as in
    `KeyError: …`."""
    common = _PLACEHOLDER.sub("…", wording(error, path))
    said = _WORD.findall(common.partition(": ")[2] or common)
    return common if "…" in common and len(said) > 1 else ""


def innermost_frame(traceback: str) -> str:
    """`module:function` of the user's last frame in the text; "" if there is none."""
    users = [(file, name) for file, name in _FRAME.findall(traceback) if not _NOT_THE_USERS.search(file)]
    return _frame(*users[-1]) if users else ""


def _frame_in(error: str) -> str:
    """The last frame that the error itself names, for a record without a traceback."""
    if (found := _LOCATION.search(error)) is None:
        return ""
    file, _, name = found[1].rpartition(", ")[2].partition(" in ")
    return _frame(file.rpartition(":")[0], name)


def _frame(file: str, function: str) -> str:
    """Without the directory, in which releases are often deployed, and without the line, which any edit moves."""
    directory, _, name = file.rpartition("/")
    module = name.removesuffix(".py")
    if module == "__init__":
        module = directory.rpartition("/")[2] or module
    return f"{module}:{function.strip()}"
