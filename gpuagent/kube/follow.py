"""The loop that keeps up with one list of objects: list, watch from there, and list again whenever that ends badly."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpuagent.backoff import Backoff
from gpuagent.kube.errors import ApiError, KubeError
from gpuagent.kube.stream import Watch

log = logging.getLogger(__name__)

_GONE = 410
# A watch that stood this long was a success, even if it was quiet; one that ended sooner is not opened again at once.
_STEADY_S = 5.0


class Api(Protocol):
    """What following needs of the Client."""

    def list(self, path: str, params: Mapping[str, str | int | bool] | None = None) -> dict[str, Any]:
        """Return a List object."""

    def watch(self, path: str, params: Mapping[str, str | int | bool] | None = None) -> Watch:
        """Open a watch."""


class Follower(Protocol):
    """Who is told. Called from the following thread only."""

    def listed(self, items: Sequence[dict[str, Any]]) -> None:
        """All objects as they are now; replaces everything said before."""

    def changed(self, kind: str, found: dict[str, Any]) -> None:
        """One object was ADDED, MODIFIED or DELETED (``kind``)."""

    def failed(self, reason: str) -> None:
        """Nothing can be known for now; said once per reason until the next ``listed``."""


@dataclass
class Follow:
    """Follows the objects at ``path`` that match ``selector`` (a fieldSelector) until stopped.

    ``run`` is the body of a thread and outlives every error. Three levels: ``run`` tries for ever, ``_list_and_watch``
    lists once and keeps a watch going, ``_watch`` is one connection.
    """

    client: Api
    path: str
    selector: str
    follower: Follower
    backoff: Backoff = field(default_factory=Backoff)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._open: Watch | None = None
        self._said: set[str] = set()
        # "0": any version the server has in memory, which spares etcd; "" after that one proved too old.
        self._list_from = "0"

    def run(self) -> None:
        """Follow until ``stop``."""
        while not self._stopped.is_set():
            try:
                self._list_and_watch()
            except ApiError as err:
                if err.status == _GONE:
                    self._list_from = ""
                    log.info("watch too old, listing again", extra={"path": self.path})
                else:
                    self._fail(str(err))
            except KubeError as err:
                self._fail(str(err))
            except Exception as err:
                # A bug must not silently end the agent's view of the cluster.
                log.exception("following failed", extra={"path": self.path})
                self._fail(f"unexpected: {type(err).__name__}: {err}")
            self._stopped.wait(self.backoff.next_s())

    def stop(self) -> None:
        """End ``run`` soon, from any thread: at once while it watches, within a call's timeout otherwise."""
        self._stopped.set()
        with self._lock:
            if self._open is not None:
                self._open.close()

    def _list_and_watch(self) -> None:
        params = {"fieldSelector": self.selector}
        if self._list_from:
            params["resourceVersion"] = self._list_from
        found = self.client.list(self.path, params)
        self._list_from = "0"
        self._said.clear()
        self.follower.listed(found.get("items") or [])
        version = _version(found)
        while not self._stopped.is_set():
            began = self.clock()
            try:
                version = self._watch(version)
            finally:
                steady = self.clock() - began >= _STEADY_S
                if steady:
                    self.backoff.reset()
            if not steady:
                self._stopped.wait(self.backoff.next_s())

    def _watch(self, version: str) -> str:
        """Return the version to go on from when the server has ended the watch in good order."""
        with self.client.watch(self.path, {"fieldSelector": self.selector, "resourceVersion": version}) as watch:
            with self._lock:
                self._open = watch
                if self._stopped.is_set():
                    watch.close()
            try:
                for event in watch:
                    self.backoff.reset()
                    version = _version(event["object"]) or version
                    if event["type"] != "BOOKMARK":
                        self.follower.changed(event["type"], event["object"])
            finally:
                with self._lock:
                    self._open = None
        return version

    def _fail(self, reason: str) -> None:
        if self._stopped.is_set() or reason in self._said:
            return
        self._said.add(reason)
        log.warning("the API server cannot be followed", extra={"path": self.path, "reason": reason})
        self.follower.failed(reason)


def _version(found: Mapping[str, Any]) -> str:
    return str((found.get("metadata") or {}).get("resourceVersion") or "")
