"""Lists in pages, as kube-apiserver makes them: all pages of one list are of one version, until that is forgotten."""

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from standin.api.objects import Json, Objects
from standin.api.refusal import Refusal

_FORGOTTEN = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter."
)


@dataclass(frozen=True, slots=True)
class Rest:
    """The items left of a list, and the version at which it began."""

    items: list[Json]
    version: int


@dataclass(slots=True)
class OpenLists:
    """Lists that a client has not read to their end, by the token that continues them."""

    by_token: dict[str, Rest] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Page:
    """Items of one answer, and its ListMeta."""

    items: list[Json]
    metadata: Json


def page(
    lists: OpenLists, objects: Objects, query: Mapping[str, str], begin: Callable[[], list[Json]], *, counted: bool
) -> Page:
    """Begin a list, or go on with one. Raises Refusal 400, 410.

    ``counted``: the answer has the number of remaining items, which a real server adds only without selectors.
    """
    token, version = query.get("continue", ""), query.get("resourceVersion", "")
    if token and version not in ("", "0"):
        raise Refusal(400, "BadRequest", "specifying resource version is not allowed when using continue")
    if token:
        if token not in lists.by_token:
            raise Refusal(400, "BadRequest", f"continue key is not valid: {token}")
        rest = lists.by_token[token]
        if rest.version < objects.oldest:
            raise Refusal(410, "Expired", _FORGOTTEN)
    else:
        with objects.updated:
            rest = Rest(begin(), objects.version)
    # With version 0 the real server answers from its cache, whole.
    limit = int(query.get("limit") or 0) if version != "0" else 0
    items, more = (rest.items[:limit], rest.items[limit:]) if limit else (rest.items, [])
    metadata: Json = {"resourceVersion": str(rest.version)}
    if more:
        # A token stays good: a client may ask for the same page again.
        metadata["continue"] = uuid.uuid4().hex
        lists.by_token[metadata["continue"]] = Rest(more, rest.version)
        if counted:
            metadata["remainingItemCount"] = len(more)
    return Page(items, metadata)
