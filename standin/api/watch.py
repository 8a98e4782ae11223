"""The watch stream of the stand-in API server."""

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from standin.api.objects import KINDS, Change, Json, status
from standin.api.refusal import Refusal

if TYPE_CHECKING:
    from standin.api.server import ApiServer

_BOOKMARK_S = 60.0
"""As kube-apiserver's watch cache, about."""
_LOOK_S = 0.05
_LONGEST_S = 1800.0


class WatchStream:
    """One open watch; ``send`` writes one chunk of the body and raises OSError when the client has gone."""

    def __init__(
        self, api: "ApiServer", send: Callable[[bytes], None], resource: str, namespace: str, query: dict[str, str]
    ) -> None:
        self._api = api
        self._send = send
        self._resource = resource
        self._namespace = namespace
        self._fields = selector(query.get("fieldSelector", ""))
        self._labels = label_selector(query.get("labelSelector", ""))
        self._since = int(query.get("resourceVersion") or 0)
        self._began = time.monotonic()
        self._ends = self._began + float(query.get("timeoutSeconds") or _LONGEST_S)
        self._bookmark = time.monotonic() + _BOOKMARK_S
        self._bookmarks = query.get("allowWatchBookmarks") in ("true", "1")
        self._server = api.server

    def run(self) -> None:
        """Stream until the asked time is over, the version proves too old, or the server stops."""
        try:
            self._open()
        except Refusal as refusal:
            self._event("ERROR", status(refusal))  # in the stream, after a 200, as the real watch cache does
            return
        while self._server is None or not self._server.ended:
            for change in self._new_changes():
                self._change(change)
            if self._began <= self._api.watches_ended_at:
                return
            if self._is_held():
                continue
            now = time.monotonic()
            if now >= self._ends:
                return
            if self._bookmarks and now >= self._bookmark:
                self._bookmark = now + _BOOKMARK_S
                metadata = {"resourceVersion": str(self._since), "creationTimestamp": None}
                self._event("BOOKMARK", {"kind": KINDS[self._resource], "apiVersion": "v1", "metadata": metadata})

    def _matches(self, found: Json) -> bool:
        return self._fields(found) and self._labels(found)

    def _open(self) -> None:
        objects = self._api.objects
        if self._since:
            objects.check(self._since)
            return
        found, self._since = objects.all(self._resource, self._namespace)  # from any version: first what is there
        for item in filter(self._matches, found):
            self._event("ADDED", item)

    def _new_changes(self) -> list[Change]:
        objects = self._api.objects
        with objects.updated:
            if self._is_held() or objects.version == self._since:
                objects.updated.wait(_LOOK_S)
            if self._is_held():
                return []
            changes = objects.changes(self._since)
            self._since = objects.version
            return changes

    def _is_held(self) -> bool:
        return self._api.silent or not self._api.answering.is_set()

    def _change(self, change: Change) -> None:
        if change.key[0] != self._resource or self._namespace not in ("", change.key[1]):
            return
        # An object that comes to match is ADDED, one that ceases to is DELETED.
        was = change.before is not None and self._matches(change.before)
        if change.after is not None and self._matches(change.after):
            self._event("MODIFIED" if was else "ADDED", change.after)
        elif was and change.before is not None:
            metadata = {**change.before["metadata"], "resourceVersion": str(change.version)}
            self._event("DELETED", {**change.before, "metadata": metadata})

    def _event(self, kind: str, found: Json) -> None:
        self._send(json.dumps({"type": kind, "object": found}).encode() + b"\n")


def selector(text: str) -> Callable[[Json], bool]:
    """Return the test for a fieldSelector, ``metadata.name=a,spec.nodeName!=b``."""
    terms = []
    for term in filter(None, text.split(",")):
        equal = "!=" not in term
        path, _, value = term.replace("==", "=").replace("!=", "=").partition("=")
        terms.append((path.split("."), value, equal))

    def matches(found: Json) -> bool:
        for path, value, equal in terms:
            at: Any = found
            for key in path:
                at = at.get(key, "") if isinstance(at, dict) else ""
            if (at == value) is not equal:
                return False
        return True

    return matches


def label_selector(text: str) -> Callable[[Json], bool]:
    """Return the test for a labelSelector of equalities, ``app=a,tier!=b,there,!absent``."""
    terms = [term.strip() for term in text.split(",") if term.strip()]

    def holds(labels: Json, term: str) -> bool:
        if "=" not in term:
            return (term.removeprefix("!") in labels) is not term.startswith("!")
        equal = "!=" not in term
        key, _, value = term.replace("!=", "=").replace("==", "=").partition("=")
        return (labels.get(key) == value) is equal

    return lambda found: all(holds(found["metadata"].get("labels") or {}, term) for term in terms)
