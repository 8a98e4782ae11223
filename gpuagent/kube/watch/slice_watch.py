"""Posts the node's ResourceSlices as the API server has them."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from gpuagent.domain.events import ApiUnavailable, SlicesSeen
from gpuagent.domain.pods.json_values import mapping, text
from gpuagent.domain.sharing.mode import DRA_DRIVER
from gpuagent.kube.api.client import Api
from gpuagent.kube.watch.follow import Follow

Json = dict[str, Any]
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


class SliceWatch:
    """Posts SlicesSeen with every change, from a thread of its own.

    Args:
        client: shared with others.
        node_name: whose slices.
        name: with which the names of the agent's slices begin; others of this driver on the node are not its own.
        post: takes one event, and must not block.
    """

    def __init__(
        self,
        client: Api,
        node_name: str,
        name: str,
        post: Callable[[SlicesSeen | ApiUnavailable], None],
    ) -> None:
        self._name = name
        self._post = post
        self._slices: dict[str, Json] = {}
        selector = f"spec.nodeName={node_name},spec.driver={DRA_DRIVER}"
        self._follow: Follow[Json] = Follow(client, SLICES, selector, self)
        self._thread = threading.Thread(target=self._follow.run, name="kube-slices", daemon=True)

    def start(self) -> None:
        """Begin, if it has not begun."""
        if self._thread.ident is None:
            self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End the watch."""
        self._follow.stop()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def read(self, json: Json) -> Json:
        """What the core reads of a slice."""
        return {"metadata": json.get("metadata"), "spec": json.get("spec")}

    def listed(self, items: Sequence[Json]) -> None:
        """Take the slices that there are."""
        self._slices = {}
        for item in items:
            name = _name_of(item)
            if self._is_ours(name):
                self._slices[name] = item
        self._post_slices()

    def changed(self, kind: str, item: Json) -> None:
        """Take one change."""
        name = _name_of(item)
        if not self._is_ours(name):
            return
        self._slices.pop(name, None)
        if kind != "DELETED":
            self._slices[name] = item
        self._post_slices()

    def failed(self, reason: str) -> None:
        """Take that the slices cannot be followed."""
        self._post(ApiUnavailable(f"watching resource slices: {reason}", time.monotonic(), "slices"))

    def _post_slices(self) -> None:
        # A copy: the event must not change with the next slice.
        self._post(SlicesSeen(dict(self._slices), time.monotonic()))

    def _is_ours(self, name: str) -> bool:
        return name == self._name or name.startswith(f"{self._name}-")


def _name_of(item: Json) -> str:
    metadata = mapping(item.get("metadata"))
    return text(metadata.get("name"))
