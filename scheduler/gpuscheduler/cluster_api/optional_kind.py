"""Follows objects of a kind that the API server may not have, such as a custom resource that may be installed later."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from gpuagent.domain.pods.json_values import mappings
from gpuagent.kube.api.api_errors import KubeError
from gpuagent.system.backoff import Backoff
from gpuscheduler.cluster_api.connection import Connection, decoded
from gpuscheduler.cluster_api.list_watch import PAUSE_LIMIT_S, STEADY_S, ListWatch, ObjectFollower
from gpuscheduler.core.gangs.kinds import ServedAs

log = logging.getLogger(__name__)

LOOK_S = 60.0
"""Pause between two looks whether the API server serves a kind by now."""
WANTED_S = 2.0
"""The same while pods wait for objects of the kind."""
_FORBIDDEN = 403
_NOT_FOUND = 404


class KindFollower(ObjectFollower, Protocol):
    """Takes the objects of a kind, and whether there can be any."""

    def readable(self, problem: str) -> None:
        """Take why no objects can be seen; empty if they can."""

    def none_left(self) -> None:
        """Forget all objects, because the kind itself is gone."""

    def is_wanted(self) -> bool:
        """Whether pods wait for objects of the kind."""


class OptionalKind:
    """Follows a kind until it is canceled. It outlives every error.

    Args:
        connection: to the API server.
        name: of the kind, for people.
        served_as: where API servers that have the kind serve it.
        follower: takes the objects.
        failed: called for each failure of a list or watch.

    Attributes:
        tried: set once all objects were read, or it is known why they cannot be.
    """

    def __init__(
        self,
        connection: Connection,
        name: str,
        served_as: ServedAs,
        follower: KindFollower,
        failed: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._name = name
        self._served_as = served_as
        self._follower = follower
        self._failed = failed
        self._backoff = Backoff(limit_s=PAUSE_LIMIT_S)
        self._follow: ListWatch | None = None
        self._said = ""
        self.tried = asyncio.Event()

    @property
    def is_up(self) -> bool | None:
        """Whether changes are shown; None if the API server does not serve the kind."""
        if self._follow is None:
            return None
        return self._follow.lost_at is None

    async def run(self) -> None:
        """Follow whenever the API server serves the kind."""
        while True:
            try:
                version = await self._version()
            except KubeError as err:
                await self._cannot(err)
                continue
            if version is None:
                self._not_served()
                await self._pause()
                continue
            await self._follow_version(version)

    async def _version(self) -> str | None:
        """The version to follow; None if the API server has none that can be read. Raises KubeError."""
        for version in self._served_as.versions:
            try:
                body = await self._connection.get(f"/apis/{self._served_as.group}/{version}")
            except KubeError as err:
                if err.status == _NOT_FOUND:
                    continue
                raise
            names = [resource.get("name") for resource in mappings(decoded(body).get("resources"))]
            if self._served_as.resource in names:
                return version
        return None

    async def _follow_version(self, version: str) -> None:
        """Follow until the API server no longer lets this process."""
        path = f"/apis/{self._served_as.group}/{version}/{self._served_as.resource}"
        ends_with = (_FORBIDDEN, _NOT_FOUND)
        self._follow = ListWatch(self._connection, path, self._follower, self._failed, ends_with=ends_with)
        when_tried = asyncio.ensure_future(self._when_tried(self._follow))
        try:
            await self._follow.run()
        except KubeError as err:
            # A custom resource that was removed is looked for again at once.
            if err.status != _NOT_FOUND:
                await self._cannot(err)
        finally:
            when_tried.cancel()

    async def _when_tried(self, follow: ListWatch) -> None:
        await follow.tried.wait()
        self.tried.set()
        await follow.listed.wait()
        if self._said:
            # With the right to list alone, each list is followed by a refusal.
            await asyncio.sleep(STEADY_S)
        self._say("")

    def _not_served(self) -> None:
        self._follow = None
        self._follower.none_left()
        self._say(f"the cluster has no objects {self._served_as.resource}.{self._served_as.group}")
        self.tried.set()

    async def _cannot(self, err: KubeError) -> None:
        """Say why the objects cannot be read, and wait."""
        if err.status != _FORBIDDEN:
            # As for nodes and pods, it passes. What was seen before stands.
            self.tried.set()
            await asyncio.sleep(self._backoff.next_s())
            return
        self._failed()
        why = f"gpuscheduler may not list and watch {self._served_as.resource}.{self._served_as.group}"
        if self._say(why):
            log.warning("Missing the right to read objects", extra={"kind": self._name, "reason": str(err)})
        self.tried.set()
        await self._pause()

    def _say(self, problem: str) -> bool:
        """Pass on why no objects can be seen; whether it was another reason before."""
        is_new = problem != self._said
        self._said = problem
        self._follower.readable(problem)
        self._backoff.reset()
        return is_new

    async def _pause(self) -> None:
        """Wait until the next look, which comes sooner if pods wait."""
        for _ in range(round(LOOK_S / WANTED_S)):
            await asyncio.sleep(WANTED_S)
            if self._follower.is_wanted():
                return
