"""Large lists, a page at a time: of each page only what is asked for stays in memory."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from gpuagent.kube.errors import ApiError

T = TypeVar("T")
Params = Mapping[str, str | int | bool]

PAGE = 500
"""Objects a page, as kubectl asks for them."""
MOST_STARTS = 4
_GONE = 410


class Lister(Protocol):
    """What paging needs of the Client."""

    def page(self, path: str, params: Params | None = None) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
        """Return a List's metadata and items."""


class Listed(Generic[T]):
    """What was kept of a list, and the version that it was true of."""

    def __init__(self) -> None:
        self.items: list[T] = []
        self.version = ""


def list_pages(
    client: Lister, path: str, keep: Callable[[dict[str, Any]], T | None], params: Params | None = None
) -> Listed[T]:
    """List a collection; of each object what ``keep`` makes of it, unless that is None. All of it is of one version.

    Where the server forgets that version meanwhile (410), the list begins anew, a few times. May raise what
    ``Client.page`` does.
    """
    for start in range(1, MOST_STARTS + 1):
        try:
            return _once(client, path, keep, params or {})
        except ApiError as err:
            if err.status != _GONE or start == MOST_STARTS:
                raise
    raise AssertionError("the last start returns or raises")


def _once(client: Lister, path: str, keep: Callable[[dict[str, Any]], T | None], params: Params) -> Listed[T]:
    listed = Listed[T]()
    query: dict[str, str | int | bool] = {**params, "limit": PAGE}
    while True:
        metadata, items = client.page(path, query)
        listed.items.extend(kept for kept in map(keep, items) if kept is not None)
        listed.version = str(metadata.get("resourceVersion") or "")
        token = metadata.get("continue")
        if not token:
            return listed
        query["continue"] = str(token)
