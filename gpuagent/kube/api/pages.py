"""Large lists, a page at a time: only the kept items of each page stay in memory."""

import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from gpuagent.kube.api.api_errors import ApiError
from gpuagent.kube.api.client import Api, Params

T = TypeVar("T")

Object = dict[str, Any]
Keep = Callable[[Object], T | None]
"""Maps an object to the item to keep of it, or to None to leave it out."""

PAGE = 500
"""Objects a page, as kubectl requests them."""
MOST_STARTS = 4
MOST_WAITS = 3
"""How often to wait for a list that the server delays (429)."""
LONGEST_WAIT_S = 10
"""For how long at a time."""
_GONE = 410
_TOO_MANY = 429


class Listed(Generic[T]):
    """The kept items of a list, and the resource version of that list."""

    def __init__(self) -> None:
        self.items: list[T] = []
        self.version = ""


def list_pages(client: Api, path: str, keep: Keep[T], params: Params | None = None) -> Listed[T]:
    """List a collection at one resource version.

    If the server drops that version meanwhile (410), the list begins again, at most ``MOST_STARTS`` times in all. If
    it delays a page (429), the page is requested again after the time it names. Raises the errors of ``Client.page``.
    """
    for start in range(1, MOST_STARTS + 1):
        try:
            return _once(client, path, keep, params or {})
        except ApiError as err:
            # The pages of one list have one version. A new list begins with a newer one.
            if err.status != _GONE or start == MOST_STARTS:
                raise
    raise AssertionError("the last start returns or raises")


def _once(client: Api, path: str, keep: Keep[T], params: Params) -> Listed[T]:
    listed = Listed[T]()
    query: dict[str, str | int | bool] = {**params, "limit": PAGE}
    while True:
        metadata, items = _page(client, path, query)
        for item in items:
            kept = keep(item) if isinstance(item, dict) else None
            if kept is not None:
                listed.items.append(kept)
        listed.version = str(metadata.get("resourceVersion") or "")
        token = metadata.get("continue")
        if not token:
            return listed
        query["continue"] = str(token)
        query.pop("resourceVersion", None)  # the token has it


def _page(client: Api, path: str, query: Params) -> tuple[Object, Iterator[Object]]:
    for _ in range(MOST_WAITS):
        try:
            return client.page(path, query)
        except ApiError as err:
            pause_s = err.retry_after_s
            if err.status != _TOO_MANY or pause_s is None or pause_s > LONGEST_WAIT_S:
                raise
            time.sleep(pause_s)
    return client.page(path, query)
