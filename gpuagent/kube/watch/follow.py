"""The loop that follows one collection: list, watch from that version, and list again after a failure."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from gpuagent.domain.pods.json_values import mapping, text
from gpuagent.kube.api.api_errors import ApiError, ApiStarting, KubeError
from gpuagent.kube.api.client import Api
from gpuagent.kube.api.pages import list_pages
from gpuagent.kube.watch.stream import Watch
from gpuagent.system.backoff import Backoff

log = logging.getLogger(__name__)

T = TypeVar("T")

_GONE = 410
# A watch that stayed open this long was a success, even if quiet; after a shorter one there is a pause.
_STEADY_S = 5.0


class Follower(Protocol[T]):
    """Receives the objects. Only the following thread calls it."""

    def read(self, json: dict[str, Any]) -> T:
        """Return the item to keep of one object. The object is dropped before the next one is read."""

    def listed(self, items: Sequence[T]) -> None:
        """Take all objects as they are now; they replace all earlier ones."""

    def changed(self, kind: str, item: T) -> None:
        """Take one object that was ADDED, MODIFIED or DELETED (``kind``)."""

    def failed(self, reason: str) -> None:
        """Take the reason of a failure; called once per reason until the next ``listed``."""


@dataclass
class Follow(Generic[T]):
    """Follows the objects at ``path`` that match ``selector`` (a fieldSelector) and ``labels`` until stopped.

    ``run`` is the body of a thread and outlives every error. Three levels: ``run`` retries forever, ``_list_and_watch``
    lists once and keeps a watch open, ``_watch`` is one connection. An object that the follower cannot read is logged
    once and left out; the others are followed.

    Args:
        unlisted: returns further terms of the selector, for a list alone: they leave out objects that do not matter
            unless they change while they are followed.
        labels: a labelSelector.
    """

    client: Api
    path: str
    selector: str
    follower: Follower[T]
    backoff: Backoff = field(default_factory=Backoff)
    clock: Callable[[], float] = time.monotonic
    unlisted: Callable[[], str] = lambda: ""
    labels: str = ""

    def __post_init__(self) -> None:
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._open: Watch | None = None
        self._reported: set[str] = set()
        self._odd: set[str] = set()
        # "0": any version that the server has in memory, which spares etcd; "" once that one was too old.
        self._list_from = "0"

    def run(self) -> None:
        """Follow until ``stop``."""
        while not self._stopped.is_set():
            try:
                self._list_and_watch()
            except ApiError as err:
                if err.status == _GONE:
                    self._list_from = ""
                    log.info("Listed again, as the watch was too old", extra={"path": self.path})
                else:
                    self._fail(str(err))
            except ApiStarting as err:
                # Its absence was reported before, and its roles are read in seconds.
                log.debug("Waits for the API server's roles", extra={"path": self.path, "reason": str(err)})
            except KubeError as err:
                self._fail(str(err))
            except Exception as err:
                # A bug must not silently end the agent's view of the cluster.
                reason = f"unexpected: {type(err).__name__}: {err}"
                if reason not in self._reported:
                    log.exception("Failed to follow objects", extra={"path": self.path})
                self._fail(reason)
            self._stopped.wait(self.backoff.next_s())

    def stop(self) -> None:
        """End ``run`` soon, from any thread: at once while it watches, within a call's timeout otherwise."""
        self._stopped.set()
        with self._lock:
            if self._open is not None:
                self._open.close()

    def _list_and_watch(self) -> None:
        # What could not be read is logged once for each list.
        self._odd.clear()
        selector = ",".join(filter(None, (self.selector, self.unlisted())))
        listed = list_pages(self.client, self.path, self._read, _query(selector, self.labels, self._list_from))
        self._list_from = "0"
        self.follower.listed(listed.items)
        # From now on, a failure is a new one, even if its text is the same.
        self._reported.clear()
        version = listed.version
        while not self._stopped.is_set():
            began = self.clock()
            try:
                version = self._watch(version)
            finally:
                was_steady = self.clock() - began >= _STEADY_S
                if was_steady:
                    self.backoff.reset()
            if not was_steady:
                self._stopped.wait(self.backoff.next_s())

    def _watch(self, version: str) -> str:
        """Watch until the server ends the watch without an error; return the version to continue from."""
        with self.client.watch(self.path, _query(self.selector, self.labels, version)) as watch:
            with self._lock:
                self._open = watch
                # `stop` may have come before there was a watch to close.
                if self._stopped.is_set():
                    watch.close()
            try:
                for event in watch:
                    version = _version(event["object"]) or version
                    if event["type"] != "BOOKMARK":
                        self._change(event["type"], event["object"])
            finally:
                with self._lock:
                    self._open = None
        return version

    def _read(self, json: dict[str, Any]) -> T | None:
        """The item to keep of an object of a list; None if the follower cannot read the object."""
        try:
            return self.follower.read(json)
        except Exception as err:  # noqa: BLE001 - one odd object must not hide the others
            self._leave_out(json, err)
            return None

    def _change(self, kind: str, json: dict[str, Any]) -> None:
        try:
            self.follower.changed(kind, self.follower.read(json))
        except Exception as err:
            self._leave_out(json, err)
            if kind == "DELETED":
                # The follower may still have the object from before: a new list removes it.
                raise ApiError(0, "BadAnswer", "the watch deleted an object that cannot be read") from err

    def _leave_out(self, json: Mapping[str, Any], err: Exception) -> None:
        name = _name(json)
        if name in self._odd:
            return
        self._odd.add(name)
        reason = f"{type(err).__name__}: {err}"
        log.warning("Left out an object", extra={"path": self.path, "object": name, "reason": reason})

    def _fail(self, reason: str) -> None:
        if self._stopped.is_set() or reason in self._reported:
            return
        self._reported.add(reason)
        log.debug("Failed to follow the API server", extra={"path": self.path, "reason": reason})
        self.follower.failed(reason)


def _query(selector: str, labels: str, version: str) -> dict[str, str]:
    query = {"fieldSelector": selector, "labelSelector": labels, "resourceVersion": version}
    return {key: value for key, value in query.items() if value}


def _version(json: Mapping[str, Any]) -> str:
    metadata = mapping(json.get("metadata"))
    return text(metadata.get("resourceVersion"))


def _name(json: Mapping[str, Any]) -> str:
    metadata = mapping(json.get("metadata"))
    parts = [text(metadata.get("namespace")), text(metadata.get("name"))]
    return "/".join(part for part in parts if part) or "without a name"
