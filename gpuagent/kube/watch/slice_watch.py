"""Posts the node's ResourceSlice as the API server has it."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from gpuagent.domain.events import ApiUnavailable, SliceSeen
from gpuagent.domain.pods.json_values import mapping, text
from gpuagent.domain.sharing.mode import DRA_DRIVER
from gpuagent.kube.api.client import Api
from gpuagent.kube.watch.follow import Follow

Json = dict[str, Any]
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


class SliceWatch:
    """Posts SliceSeen with every change, from a thread of its own.

    Args:
        client: shared with others.
        node_name: whose slice.
        name: of the slice; another slice of this driver on the node is none of this agent's.
        post: takes one event, and must not block.
    """

    def __init__(
        self, client: Api, node_name: str, name: str, post: Callable[[SliceSeen | ApiUnavailable], None]
    ) -> None:
        self._name, self._post = name, post
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

    def read(self, found: Json) -> Json:
        """What the core reads of a slice."""
        return {"metadata": found.get("metadata"), "spec": found.get("spec")}

    def listed(self, items: Sequence[Json]) -> None:
        """Take the slices that there are."""
        self._post(SliceSeen(next((one for one in items if self._is_ours(one)), None), time.monotonic()))

    def changed(self, kind: str, item: Json) -> None:
        """Take one change."""
        if self._is_ours(item):
            self._post(SliceSeen(None if kind == "DELETED" else item, time.monotonic()))

    def failed(self, reason: str) -> None:
        """Take that the slices cannot be followed."""
        self._post(ApiUnavailable(f"watching resource slices: {reason}", time.monotonic(), "slices"))

    def _is_ours(self, item: Json) -> bool:
        return text(mapping(item.get("metadata")).get("name")) == self._name
