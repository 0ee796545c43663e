"""The signature of a version of a file as text, and when two signatures mean the same version. Reads no file.

    <size>-<mtime in ns>[-i<inode>][-c<hash of the content>]

The first two are always there; each of the others only if the producer recorded it (`producer.identity`). What one of
two signatures lacks is not compared. So a ledger of an older release, which has none of them, stays valid.
"""

from __future__ import annotations

import re

from msgspec import Struct

_FORM = re.compile(r"(.*?)(?:-i([0-9]+))?(?:-c([0-9a-f]+))?", re.DOTALL)


class SignatureParts(Struct, frozen=True):
    """`short` is size and time. `inode` and `content` are "" if the signature lacks them."""

    short: str
    inode: str = ""
    content: str = ""

    @property
    def mark(self) -> str:
        """What follows the short form, without the first hyphen."""
        return self.text[len(self.short) + 1 :]

    @property
    def text(self) -> str:
        return signature_text(self.short, self.inode, self.content)


def signature_text(short: str, inode: int | str = "", content: str = "") -> str:
    """The inode 0 and an empty text mean that it is not recorded."""
    return short + (f"-i{inode}" if inode else "") + (f"-c{content}" if content else "")


def split_signature(signature: str) -> SignatureParts:
    """Every text is a signature: one of another form is a short form as a whole."""
    match = _FORM.fullmatch(signature)
    assert match is not None
    return SignatureParts(match[1], match[2] or "", match[3] or "")


def is_same_version(one: str, other: str) -> bool:
    """Compares the contents if both signatures have a hash, else the inodes if both have one. lua/prelude/ledger.lua
    does the same."""
    if one == other:
        return True
    a, b = split_signature(one), split_signature(other)
    if a.short != b.short:
        return False
    if a.content and b.content:
        return a.content == b.content
    return not (a.inode and b.inode) or a.inode == b.inode
