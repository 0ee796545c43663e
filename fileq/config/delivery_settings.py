"""The keys of one entry below `producer.deliveries`: directories whose files are a batch, and when it is complete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from fileq.config.kinds import TextKind
from fileq.config.section import Section
from fileq.config.value_types import Count, JobType, Seconds

_FILE_NAME = r"(?s)[^/\0]+"
FAILED_MARKER = "_FILEQ_FAILED"


class CompleteSettings(Section, frozen=True):
    """When a delivery is complete: exactly one of these."""

    is_sparse: ClassVar[bool] = True

    marker: Annotated[str | None, TextKind(_FILE_NAME, "the name of a file"), "a file of this name exists"] = None
    manifest: Annotated[
        str | None, TextKind(_FILE_NAME, "a glob of names such as *.manifest.json"), "all files of this list exist"
    ] = None
    files: Annotated[Count | None, "so many files exist"] = None
    quiet: Annotated[Seconds | None, "no file came or changed in this time"] = None

    def contradictions(self) -> Iterator[tuple[str, str]]:
        given = [name for name in self.__struct_fields__ if getattr(self, name) is not None]
        if len(given) != 1:
            has = f"has {' and '.join(given)}" if given else "is empty"
            yield "", f"{has}; give exactly one of marker, manifest, files and quiet"


class DeliverySettings(Section, frozen=True):
    """One kind of delivery."""

    is_sparse: ClassVar[bool] = True

    match: Annotated[
        str,
        TextKind(r"(?s)[^/].*/", "a glob of directories that ends with a slash, such as acme/*/"),
        "which directories",
    ] = ""
    complete: Annotated[CompleteSettings, "when it is complete: marker, manifest, files or quiet"] = CompleteSettings()
    deadline: Annotated[Seconds | None, "after its first file; then it is sealed as incomplete, and catch is due"] = (
        None
    )
    allow_failures: Annotated[bool, "go on with the other files when one is dead"] = False
    then: Annotated[JobType | None, "type of a job to enqueue when all files are completed"] = None
    catch: Annotated[JobType | None, "type of a job to enqueue when the first file is dead"] = None
    done_marker: Annotated[
        str,
        TextKind(r"(?s)[^/\0]*", "the name of a file"),
        f"file to write into the directory at the end; {FAILED_MARKER} if a file failed",
    ] = ""

    def contradictions(self) -> Iterator[tuple[str, str]]:
        if not self.match:
            yield "", "has no match; say which directories"
        if self.complete == CompleteSettings():
            yield "", "has no complete; say when a delivery is complete"
        if self.done_marker and self.done_marker in (self.complete.marker, FAILED_MARKER):
            yield "done_marker", f"is {self.done_marker!r}, which has another meaning here; choose another name"
