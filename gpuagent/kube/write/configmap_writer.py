"""Keeps ConfigMaps as desired; nothing here ever blocks the caller."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gpuagent.domain.reconcile.configmap import Change, ConfigMapFacts, change
from gpuagent.kube.api.api_errors import ApiError, KubeError
from gpuagent.kube.write.worker import Worker
from gpuagent.system.backoff import Backoff

log = logging.getLogger(__name__)

RECHECK_S = 300.0
"""Longest time until a change by another writer is corrected.

A watch would show the change at once, but cost every node one connection for each ConfigMap.
"""
# Reads in a row while another writer comes in between; then it waits as after any failure.
_LOOKS = 3
_FORBIDDEN, _NOT_FOUND, _CONFLICT = 403, 404, 409


class Api(Protocol):
    """The methods of the Client that ConfigMapWriter uses."""

    def get(self, path: str) -> dict[str, Any]:
        """Return one object."""

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """POST to a collection."""

    def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Merge patch."""

    def delete(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """DELETE, with DeleteOptions."""


@dataclass(slots=True)
class _Kept:
    """One ConfigMap: its desired data, and the time of its next check (``time.monotonic``).

    Attributes:
        asked: a check was requested since the last one began.
        right: the last check found or made it right, and none was requested since.
    """

    facts: ConfigMapFacts
    backoff: Backoff
    due: float = 0.0
    not_before: float = 0.0
    asked: bool = True
    right: bool = False
    failure: str = ""

    def ask(self, due: float) -> None:
        self.due, self.asked, self.right = due, True, False


class ConfigMapWriter(Worker):
    """Level-triggered: stores the desired ConfigMaps, reads the present ones, and writes the difference.

    It reads a ConfigMap when the desired data changes, every ``recheck_s``, and repeatedly after a failure. It treats
    each ConfigMap by itself, so that a refused one delays no other. A daemon thread does all of this. It leaves a
    ConfigMap that is no longer desired as it is: to remove one, desire it with ``data`` None.

    Args:
        client: shared with others.
        `told`: called with the reason why ConfigMaps are not as desired, and with None once they are.
        recheck_s: longest time between two reads of one that is right.
        gap_s: least time between two reads of one, against a storm of changes.
        backoff: makes the delays after failures.
    """

    def __init__(
        self,
        client: Api,
        *,
        told: Callable[[str | None], None] = lambda _: None,
        recheck_s: float = RECHECK_S,
        gap_s: float = 0.2,
        backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        super().__init__("kube-configmaps")
        self._client = client
        self._told = told
        self._said = ""
        self._recheck_s = recheck_s
        self._gap_s = gap_s
        self._backoff = backoff
        self._desired: tuple[ConfigMapFacts, ...] = ()
        self._kept: dict[tuple[str, str], _Kept] = {}

    def desire(self, facts: tuple[ConfigMapFacts, ...]) -> None:
        """Replace the desired ConfigMaps; never blocks. Of two about one ConfigMap the last counts."""
        with self._wake:
            if facts == self._desired:
                return
            self._desired = facts
            self._kept = {(one.namespace, one.name): self._keep(one) for one in facts}
            self._wake.notify_all()
        self._tell()

    def recheck(self) -> None:
        """Read all of them now, also those that wait after a failure; never blocks."""
        with self._wake:
            for kept in self._kept.values():
                kept.ask(0.0)
            self._wake.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until every one was read and is right; False where ``timeout_s`` was too short."""
        with self._wake:
            return self._wake.wait_for(lambda: all(kept.right for kept in self._kept.values()), timeout_s)

    @property
    def problem(self) -> str:
        """The reasons why ConfigMaps are not as desired now; "" if they all are."""
        with self._wake:
            return "; ".join(kept.failure for kept in self._kept.values() if kept.failure)

    def _tell(self) -> None:
        with self._wake:
            problem = "; ".join(kept.failure for kept in self._kept.values() if kept.failure)
            news, self._said = problem != self._said, problem
        if news:
            self._told(problem or None)

    def _keep(self, facts: ConfigMapFacts) -> _Kept:
        kept = self._kept.get((facts.namespace, facts.name))
        if kept is None:
            return _Kept(facts, self._backoff())
        if kept.facts != facts:
            kept.facts = facts
            kept.ask(kept.not_before)
        return kept

    def _run(self) -> None:
        while (work := self._next()) is not None:
            kept, facts = work
            failure = self._make_right(facts)
            if failure and failure != kept.failure:
                log.debug("a config map cannot be kept right", extra={"config_map": str(facts), "reason": failure})
            elif kept.failure and not failure:
                log.info("the config map is right again", extra={"config_map": str(facts)})
            with self._wake:
                self._looked(kept, failure)
                self._wake.notify_all()
            self._tell()

    def _next(self) -> tuple[_Kept, ConfigMapFacts] | None:
        """Wait for the next one to read; None when stopped."""
        with self._wake:
            while not self._stopped:
                kept = min(self._kept.values(), key=lambda one: one.due, default=None)
                if kept is None:
                    self._wake.wait()
                elif (wait_s := kept.due - time.monotonic()) > 0:
                    self._wake.wait(wait_s)
                else:
                    kept.asked = False
                    return kept, kept.facts
            return None

    def _looked(self, kept: _Kept, failure: str) -> None:
        now = time.monotonic()
        if not failure:
            kept.backoff.reset()
        kept.failure = failure
        kept.right = not failure and not kept.asked
        kept.not_before = now + (kept.backoff.next_s() if failure else self._gap_s)
        kept.due = now + self._recheck_s if kept.right else kept.not_before

    def _make_right(self, facts: ConfigMapFacts) -> str:
        """Read and write; return the failure and the remedy in words, "" without a failure."""
        try:
            self._look_and_write(facts)
        except Exception as err:  # a bug must not end the thread that keeps the others right
            if not isinstance(err, KubeError):
                log.exception("config map failed", extra={"config_map": str(facts)})
            return f"config map {facts}: {_reason(err, facts)}"
        return ""

    def _look_and_write(self, facts: ConfigMapFacts) -> None:
        looks = 0
        while (write := change(self._find(facts), facts)) is not None:
            looks += 1
            try:
                self._send(write, facts)
            except ApiError as err:
                # Another writer has changed, made or deleted it since the read. A missing namespace differs.
                outrun = err.status == _CONFLICT or (err.status == _NOT_FOUND and write.verb != "create")
                if not outrun or looks == _LOOKS:
                    raise
            else:
                return

    def _find(self, facts: ConfigMapFacts) -> dict[str, Any] | None:
        try:
            return self._client.get(f"{_collection(facts)}/{facts.name}")
        except ApiError as err:
            # The agent cannot have made a ConfigMap that it may not read.
            unmade = facts.data is None and err.status == _FORBIDDEN
            if err.status != _NOT_FOUND and not unmade:
                raise
            return None

    def _send(self, write: Change, facts: ConfigMapFacts) -> None:
        path = _collection(facts)
        match write.verb:
            case "create":
                self._client.create(path, write.body)
            case "patch":
                self._client.patch(f"{path}/{facts.name}", write.body)
            case "delete":
                self._client.delete(f"{path}/{facts.name}", write.body)


def _collection(facts: ConfigMapFacts) -> str:
    return f"/api/v1/namespaces/{facts.namespace}/configmaps"


def _reason(err: Exception, facts: ConfigMapFacts) -> str:
    status = err.status if isinstance(err, ApiError) else 0
    if status == _FORBIDDEN:  # name all required rights at once: each try may lack another one
        return f"{err}; the agent needs get, create, patch and delete on configmaps in namespace {facts.namespace}"
    if status == _CONFLICT:  # the server's words name versions, which differ each time
        return "another client writes it again and again at the same time; its managedFields name the client"
    return str(err)
