"""The API server as kubelet sees it: away means that it knows what it knew, and writes later."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial

from simworld.runtime.http import SimulatedApi
from simworld.runtime.kernel import kernel
from standin.api.objects import Json, Key, copied, not_found
from standin.api.refusal import Refusal

RETRY_S = 1.0


class ApiView:
    """The part of `Objects` that one process of kubelet uses. A new process knows nothing until the server answers."""

    def __init__(self, api: SimulatedApi) -> None:
        self._api = api
        self._objects = api.objects
        self._known: dict[str, list[Json]] = {}
        # In their order: a late write must not undo a later one.
        self._late: deque[Callable[[], Json]] = deque()
        # The version from when on nothing of a pod is learned; None while everything is.
        self._held_at: int | None = None
        self.updated = api.objects.updated

    @property
    def version(self) -> int:
        return self._objects.version if self._held_at is None else self._held_at

    @contextmanager
    def pods_held(self) -> Iterator[None]:
        """Learn nothing of pods inside: kubelet's only loop is busy."""
        self.peek("pods")
        self._held_at = self.version
        try:
            yield
        finally:
            self._held_at = None
            with self.updated:
                self.updated.notify_all()

    def _learns(self, resource: str) -> bool:
        is_held = resource == "pods" and self._held_at is not None
        return not self._api.is_away and not is_held

    def peek(self, resource: str) -> list[Json]:
        """As `Objects.peek`, or as it was when the server answered last."""
        if self._learns(resource):
            self._known[resource] = self._objects.peek(resource)
        return self._known.get(resource, [])

    def all(self, resource: str, namespace: str = "") -> tuple[list[Json], int]:
        """As `Objects.all`."""
        if not self._api.is_away:
            return self._objects.all(resource, namespace)
        return copied(self._known.get(resource, [])), self.version

    def get(self, key: Key) -> Json:
        """As `Objects.get`, or as it was when the server answered last. Raises Refusal 404."""
        if self._learns(key[0]):
            return self._objects.get(key)
        if key[0] == "resourceclaims":  # kubelet asks for these each time
            raise Refusal(503, "ServiceUnavailable", "the API server cannot be reached")
        for known in self.peek(key[0]):
            metadata = known["metadata"]
            if (metadata.get("namespace", ""), metadata["name"]) == key[1:]:
                return copied(known)
        raise not_found(key[0], key[2])

    def update(self, key: Key, change: Callable[[Json], Json]) -> Json:
        """As `Objects.update`, now or later."""
        return self._now_or_later(partial(self._objects.update, key, change))

    def patch(self, key: Key, subresource: str, patch: Json, *, strategic: bool) -> Json:
        """As `Objects.patch`, now or later."""
        return self._now_or_later(partial(self._objects.patch, key, subresource, patch, strategic=strategic))

    def delete(self, key: Key, *, grace_s: int | None = 0, preconditions: Mapping[str, str] | None = None) -> Json:
        """As `Objects.delete`, now or later."""
        return self._now_or_later(partial(self._objects.delete, key, grace_s=grace_s, preconditions=preconditions))

    def create(self, resource: str, namespace: str, body: Json) -> Json:
        """As `Objects.create`; what cannot be created now is lost, as an Event."""
        return {} if self._api.is_away else self._objects.create(resource, namespace, body)

    def _now_or_later(self, write: Callable[[], Json]) -> Json:
        if not self._api.is_away and not self._late:
            return write()
        self._late.append(write)
        if len(self._late) == 1:
            kernel().spawn(self._write_later, "kubelet writes later")
        return {}

    def _write_later(self) -> None:
        while self._late:
            while self._api.is_away:
                kernel().sleep(RETRY_S)
            with suppress(Refusal):  # it has changed, or has gone, meanwhile
                self._late[0]()
            self._late.popleft()
