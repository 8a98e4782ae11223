"""Follows one collection: lists it, watches from that version on, and lists again when the version is too old."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import aclosing
from typing import Any, Protocol

import msgspec

from gpuagent.domain.pods.json_values import number, text
from gpuagent.kube.api.api_errors import ApiError, KubeError
from gpuagent.system.backoff import Backoff
from gpuscheduler.cluster_api.connection import Connection, Json, decoded

log = logging.getLogger(__name__)

PAGE = 100
"""Objects in the first answer to a list."""
MOST_IN_PAGE = 500
"""The most objects in one answer."""
PAGE_BYTES = 2 * 1024 * 1024
"""Size of a further answer, about: a pod may have 1.5 MiB."""
WATCH_S = 300
"""The server is asked to end a watch after this long."""
STEADY_S = 5.0
"""A watch that stayed open this long was a success; after a shorter one there is a pause."""
PAUSE_LIMIT_S = 2.0
"""Longest pause before the next try. Meanwhile no pod is placed, and only one process per replica asks."""
SETTLE_S = 0.25
"""A watch that was opened again has shown what it missed after this long: the server sends that at once."""
YIELD = 50
"""Objects of a list after which others have a turn."""
_GONE = 410


class ObjectFollower(Protocol):
    """Takes the objects. An object for which it raises an exception is left out."""

    key: str
    """Field of the metadata that identifies an object: ``name`` or ``uid``."""

    def seen(self, found: Any) -> None:  # noqa: ANN401 (what `read` returns)
        """Take an object as it is now."""

    def gone(self, key: str) -> None:
        """Take that there is no object with this key."""


class _Page(msgspec.Struct):
    metadata: Json
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Metadata(msgspec.Struct):
    """Bookmarks have no name and no UID."""

    name: str = ""
    uid: str = ""
    version: str = msgspec.field(name="resourceVersion", default="")


class _Object(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


_decode_page = msgspec.json.Decoder(_Page).decode
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_object = msgspec.json.Decoder(_Object).decode


async def list_page(connection: Connection, path: str, limit: int, token: str) -> tuple[_Page, int]:
    """A page of a list, and how many objects to ask for next. Raises KubeError."""
    params = {"limit": str(limit)}
    if token:
        params["continue"] = token
    body = await connection.get(path, params)
    try:
        page = _decode_page(body)
    except (msgspec.DecodeError, RecursionError) as err:
        raise ApiError(0, "BadAnswer", "the answer is no list; is this an API server?") from err
    objects = len(page.items or ())
    fitting = objects * PAGE_BYTES // max(len(body), 1)
    following = min(max(fitting, 1), MOST_IN_PAGE)
    return page, following


async def list_objects(connection: Connection, path: str, take: Callable[[Json], None]) -> None:
    """Take the objects of a collection once, as they are now. Raises KubeError."""
    limit = PAGE
    token = ""
    while True:
        page, limit = await list_page(connection, path, limit, token)
        for position, item in enumerate(page.items or ()):
            take(msgspec.json.decode(item))
            if position % YIELD == 0:
                await asyncio.sleep(0)
        token = text(page.metadata.get("continue"))
        if not token:
            return


class ListWatch:
    """Follows the objects at `path` until it is canceled. It outlives every error.

    Args:
        connection: to the API server.
        path: of the collection.
        follower: takes the objects.
        failed: called for each failure.
        ends_with: HTTP statuses that end `run`, because the objects cannot be followed at all; it raises KubeError.
        clock: monotonic seconds.
        read: makes what the follower takes of the JSON text of an object.

    Attributes:
        tried: set once all objects were read, or could not be.
        listed: set once all objects were read.
        lost_at: since when changes may be missing, in monotonic seconds; None while all are shown.
    """

    def __init__(  # noqa: PLR0913 (the last two by name)
        self,
        connection: Connection,
        path: str,
        follower: ObjectFollower,
        failed: Callable[[], None],
        ends_with: Collection[int] = (),
        clock: Callable[[], float] = time.monotonic,
        read: Callable[[bytes], object] = decoded,
    ) -> None:
        self._connection = connection
        self._path = path
        self._follower = follower
        self._failed = failed
        self._ends_with = ends_with
        self._clock = clock
        self._read = read
        self._backoff = Backoff(limit_s=PAUSE_LIMIT_S)
        self._keys: set[str] = set()
        self._version = ""
        self._logged: set[str] = set()
        self._odd: set[str] = set()
        self.tried = asyncio.Event()
        self.listed = asyncio.Event()
        self.lost_at: float | None = clock()

    async def run(self) -> None:
        """Follow. Raises KubeError with a status of `ends_with`."""
        while True:
            began = self._clock()
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except KubeError as err:
                if err.status in self._ends_with:
                    raise
                self._fail(str(err))
                # The server no longer knows what has changed since that version, so all is listed again.
                if err.status == _GONE:
                    self._version = ""
            except Exception as err:
                # A bug must not silently end the view of the cluster.
                log.exception("Following failed", extra={"path": self._path})
                self._fail(f"{type(err).__name__}: {err}")
                self._version = ""
            self.tried.set()
            if self._clock() - began >= STEADY_S:
                self._backoff.reset()
            else:
                await asyncio.sleep(self._backoff.next_s())

    async def _list(self) -> None:
        """Take all objects, and drop those that are gone."""
        keys: set[str] = set()
        reading = asyncio.ensure_future(list_page(self._connection, self._path, PAGE, ""))
        try:
            while True:
                page, following = await reading
                token = text(page.metadata.get("continue"))
                if token:
                    # The server makes the next page while this one is read.
                    reading = asyncio.ensure_future(list_page(self._connection, self._path, following, token))
                for number, item in enumerate(page.items or ()):
                    metadata = _metadata(item)
                    keys.add(self._take(metadata, item))
                    if number % YIELD == 0:
                        await asyncio.sleep(0)
                if not token:
                    break
        finally:
            reading.cancel()
        for key in self._keys - keys:
            self._drop(key)
        self._version = text(page.metadata.get("resourceVersion"))
        self.lost_at = None
        self.tried.set()
        self.listed.set()

    async def _watch(self) -> None:
        """Watch until the server ends the watch."""
        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
            "resourceVersion": self._version,
        }
        settled: asyncio.TimerHandle | None = None
        try:
            async with aclosing(self._connection.watch(self._path, params)) as events:
                async for line in events:
                    if settled is None:
                        loop = asyncio.get_running_loop()
                        settled = loop.call_later(SETTLE_S, self._settled)
                    # The first line is empty: it says that the watch is open.
                    if line:
                        self._event(line)
        finally:
            if settled:
                settled.cancel()
            # Until the watch is open again, changes may be missing.
            if self.lost_at is None:
                self.lost_at = self._clock()

    def _settled(self) -> None:
        self.lost_at = None
        self._logged.clear()

    def _event(self, line: bytes) -> None:
        try:
            event = _decode_event(line)
        except (msgspec.DecodeError, RecursionError) as err:
            raise ApiError(0, "BadAnswer", "the watch sent what is no event; is this an API server?") from err
        changed = event.object
        if event.type == "ERROR":
            raise _error(decoded(changed))
        metadata = _metadata(changed)
        if event.type == "DELETED":
            self._drop(self._key_of(metadata))
        elif event.type in {"ADDED", "MODIFIED"}:
            self._take(metadata, changed)
        # Bookmarks have a version, too, and nothing else.
        self._version = metadata.version or self._version

    def _take(self, metadata: _Metadata, json_text: bytes) -> str:
        key = self._key_of(metadata)
        self._keys.add(key)
        try:
            self._follower.seen(self._read(json_text))
        except Exception:
            # One odd object must not hide the others.
            if key not in self._odd:
                self._odd.add(key)
                log.exception("Left out an object", extra={"path": self._path, "object": key})
        return key

    def _drop(self, key: str) -> None:
        self._keys.discard(key)
        self._odd.discard(key)
        self._follower.gone(key)

    def _key_of(self, metadata: _Metadata) -> str:
        key: str = getattr(metadata, self._follower.key)
        return key

    def _fail(self, reason: str) -> None:
        self._failed()
        # Once for each reason: while the API server is away, every try fails.
        if reason not in self._logged:
            self._logged.add(reason)
            log.warning("Lost the API server", extra={"path": self._path, "reason": reason})


def _metadata(json_text: bytes) -> _Metadata:
    """Of an object. Raises ApiError."""
    try:
        return _decode_object(json_text).metadata
    except (msgspec.DecodeError, RecursionError) as err:
        raise ApiError(0, "BadAnswer", "the watch sent what is no object; is this an API server?") from err


def _error(status: Mapping[str, Any]) -> ApiError:
    """The Status object of an event of type ERROR."""
    code = number(status.get("code")) or 0
    reason = text(status.get("reason"))
    return ApiError(code, reason, text(status.get("message")))
