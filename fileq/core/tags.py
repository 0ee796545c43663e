"""The tags of a job: short texts by name, chosen by the program that enqueues it. Does no I/O."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import UNSET, Raw, UnsetType

from fileq.core.errors import JobError

TAGS_MAX = 20
OWN_TAGS = "fileq."  # how tags begin that a server adds; its clients can't give them
MADE_BY_TAG = "fileq.made_by"  # the id of the key that enqueued the job, if that key is limited, see server/identity.py
TAG_NAME_LENGTH, TAG_LENGTH = 100, 200


def encoded_tags(tags: Mapping[str, str]) -> Raw | UnsetType:
    """The field `tags` of a job. Raises JobError for tags that can't be used."""
    given = sum(not str(name).startswith(OWN_TAGS) for name in tags)
    if given > TAGS_MAX:
        raise JobError(f"there are {given} tags; a job can have {TAGS_MAX}")
    for name, value in tags.items():
        if not (isinstance(name, str) and 0 < len(name) <= TAG_NAME_LENGTH and name.isprintable()):
            raise JobError(f"the tag {name!r:.120} can't be used; use 1 to {TAG_NAME_LENGTH} printable characters")
        if not (isinstance(value, str) and len(value) <= TAG_LENGTH and value.isprintable()):
            raise JobError(f"the tag {name} is {value!r:.220}; use a text of up to {TAG_LENGTH} printable characters")
    return Raw(msgspec.json.encode(tags)) if tags else UNSET
