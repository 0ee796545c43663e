"""Acknowledgements of groups of dead jobs: list them, write one with a note, remove it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, UnsetType

from fileq.commands.acknowledgements import NOTE_LENGTH, Acknowledgement, AcknowledgementStore, is_fingerprint
from fileq.commands.audit_entries import short
from fileq.core.api_key import Scope
from fileq.server.problems import ApiProblem
from fileq.server.route import ApiRequest, NoQuery, Route

PATH = "/dead/groups/{fingerprint}/acknowledgement"


class AcknowledgementList(Struct, frozen=True):
    """The newest first. A group in which a job died after `at` has come back."""

    acknowledgements: tuple[Acknowledgement, ...]


class AcknowledgementNote(Struct, frozen=True, forbid_unknown_fields=True):
    """`cause` is what people call the group, such as the first line of its error. Only the audit keeps it."""

    note: Annotated[str, Meta(max_length=NOTE_LENGTH)] = ""
    cause: Annotated[str, Meta(max_length=500)] = ""


class AcknowledgementMessage(Struct, frozen=True):
    message: str


def list_acknowledgements(request: ApiRequest[NoQuery, UnsetType]) -> AcknowledgementList:
    found = _store(request).load().values()
    return AcknowledgementList(tuple(sorted(found, key=lambda one: one.at, reverse=True)))


def put_acknowledgement(request: ApiRequest[NoQuery, AcknowledgementNote]) -> Acknowledgement:
    """Replaces the one before. The group need not have jobs at the moment. The newest 1,000 are kept."""
    fingerprint = request.params["fingerprint"]
    if not is_fingerprint(fingerprint):
        raise _unknown(fingerprint)
    store = _store(request)
    before = store.load().get(fingerprint)
    made = store.put(fingerprint, request.body.note, request.caller.name)
    request.note.changed(_facts(before), _facts(made))
    request.note.detail = short(request.body.cause)
    return made


def remove_acknowledgement(request: ApiRequest[NoQuery, UnsetType]) -> AcknowledgementMessage:
    fingerprint = request.params["fingerprint"]
    if not is_fingerprint(fingerprint):
        raise _unknown(fingerprint)
    store = _store(request)
    before = store.load().get(fingerprint)
    if not store.remove(fingerprint):
        raise ApiProblem("not-found", f"the group {fingerprint} is not acknowledged")
    request.note.changed(_facts(before), {})
    return AcknowledgementMessage("Acknowledgement removed")


def _facts(known: Acknowledgement | None) -> dict[str, str]:
    if known is None:
        return {}
    return {"note": known.note, "covers deaths until": known.at.replace("T", " ").replace("Z", " UTC")}


def _store(request: ApiRequest[NoQuery, AcknowledgementNote] | ApiRequest[NoQuery, UnsetType]) -> AcknowledgementStore:
    return AcknowledgementStore(request.services.broker, request.services.now_ms)


def _unknown(fingerprint: str) -> ApiProblem:
    detail = f"{fingerprint[:100]!r} is not a fingerprint; GET /dead/groups shows them, with 12 hexadecimal digits"
    return ApiProblem("not-found", detail)


ROUTES = (
    Route(
        method="GET",
        path="/dead/acknowledgements",
        area="dead jobs",
        scopes=(Scope.READ,),
        summary="acknowledged groups of dead jobs",
        function=list_acknowledgements,
        response=AcknowledgementList,
    ),
    Route(
        method="PUT",
        path=PATH,
        area="dead jobs",
        scopes=(Scope.OPERATE,),
        summary="acknowledge a group of dead jobs, with a note",
        function=put_acknowledgement,
        body=AcknowledgementNote,
        response=Acknowledgement,
    ),
    Route(
        method="DELETE",
        path=PATH,
        area="dead jobs",
        scopes=(Scope.OPERATE,),
        summary="remove the acknowledgement of a group of dead jobs",
        function=remove_acknowledgement,
        response=AcknowledgementMessage,
    ),
)
