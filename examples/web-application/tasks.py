"""What the application does in the background."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

import fileq


class Text(Struct):
    text: str
    most: int = 3


@fileq.task("count-words", timeout="10s", max_retries=2)
def count_words(job: fileq.JobView[Text], context: fileq.Context) -> dict[str, int]:
    if not job.payload.text.strip():
        raise fileq.Permanent("the text is empty")
    return dict(Counter(job.payload.text.lower().split()).most_common(job.payload.most))
