"""Events of events.k8s.io/v1, which are the Events of v1 with other names of some fields, and stricter rules."""

import re
from typing import Any

from standin.api.refusal import Refusal

Json = dict[str, Any]

GROUP = "events.k8s.io"
_NAMES = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedCount": "count",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
}
_CORE_NAMES = {core: new for new, core in _NAMES.items()}
_FIXED = ("involvedObject", "reason", "message", "type", "action", "eventTime", "reportingController")
_QUALIFIED = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_LONG = 128
_LONGEST_NOTE = 1024


def to_core(event: Json) -> Json:
    """The fields as v1 names them."""
    return {_NAMES.get(name, name): value for name, value in event.items() if name not in ("kind", "apiVersion")}


def from_core(event: Json) -> Json:
    """The Event as events.k8s.io/v1 names its fields."""
    return {_CORE_NAMES.get(name, name): value for name, value in event.items()} | {"apiVersion": f"{GROUP}/v1"}


def check_new(event: Json) -> None:
    """Raise Refusal 422 for a new Event (fields as in v1) that breaks a rule of events.k8s.io/v1."""
    name = event["metadata"].get("name", "")
    for field in ("eventTime", "reportingComponent", "reportingInstance", "action", "reason"):
        if not event.get(field):
            raise _invalid(name, f"{_said(field)}: Required value")
        if field != "eventTime" and len(event[field]) > _LONG:
            raise _invalid(name, f'{_said(field)}: Invalid value: "": can have at most {_LONG} characters')
    if not _QUALIFIED.fullmatch(event["reportingComponent"]):
        text = "name part must consist of alphanumeric characters, '-', '_' or '.'"
        raise _invalid(name, f'reportingController: Invalid value: "{event["reportingComponent"]}": {text}')
    if event.get("type") not in ("Normal", "Warning"):
        raise _invalid(name, f'type: Invalid value: "": has invalid value: {event.get("type", "")}')
    if len(event.get("message", "").encode()) > _LONGEST_NOTE:
        raise _invalid(name, f'message: Invalid value: "": can have at most {_LONGEST_NOTE} characters')
    for field in ("firstTimestamp", "lastTimestamp", "count", "source"):
        if event.get(field):
            raise _invalid(name, f'{field}: Invalid value: "": needs to be unset')


def check_change(before: Json, after: Json) -> None:
    """Raise Refusal 422 for a change of a field that must stay."""
    for field in _FIXED:
        if before.get(field) != after.get(field):
            value = after.get(field)
            raise _invalid(before["metadata"]["name"], f'{field}: Invalid value: "{value}": field is immutable')


def _said(field: str) -> str:
    return "reportingController" if field == "reportingComponent" else field


def _invalid(name: str, text: str) -> Refusal:
    return Refusal(422, "Invalid", f'Event "{name}" is invalid: {text}')
