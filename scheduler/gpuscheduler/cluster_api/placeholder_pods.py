"""Placeholders as pods, in a namespace of the operator: no quota of a team counts them."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from gpuagent.domain.pods.json_values import mapping, mapping_at, mappings, text
from gpuagent.domain.sharing.mode import GPU_MEM
from gpuagent.kube.api.api_errors import ApiError, KubeError
from gpuagent.kube.api.timestamp import rfc3339
from gpuscheduler.cluster_api.connection import STRATEGIC_MERGE_PATCH, Connection, Json, decoded, pod_path
from gpuscheduler.core.constraints.resources import Resources
from gpuscheduler.core.pod_facts import pod_facts
from gpuscheduler.core.single_pods.placeholders import PLACEHOLDER_SCHEDULER, Look, Placeholder

log = logging.getLogger(__name__)

FOR_LABEL = "gpuagent.io/placeholder-for"
"""Of a placeholder: UID of the pod that it is for. The annotation of this name has namespace and name."""
CHECK_S = 5.0
"""How often it is worked out which placeholders are wanted."""
STEP_GAP_S = 0.01
"""Pause between two steps of that, in which calls are answered."""
LOOK_S = 0.2
"""How soon a placeholder ends whose pod has got a place: an autoscaler might add a second node for both."""
_NOT_FOUND = 404
_CONFLICT = 409
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class Core(Protocol):
    """Decides which placeholders there are."""

    def look_for_placeholders(self, now: float) -> Look:
        """Find those that are to be there now."""

    def needs_placeholder(self, uid: str) -> bool:
        """Whether a pod still waits; without a look at the nodes."""


class PlaceholderPods:
    """Creates the wanted placeholders, and deletes all others.

    Args:
        connection: to the API server.
        namespace: of the placeholders.
        core: decides.
        leading: set while anything is written.
        is_current: whether the view of the cluster is good enough to decide with.
        created: called with each new placeholder and its name.
        written: called for each write with its kind and ``ok`` or ``refused``.
    """

    def __init__(  # noqa: PLR0913 (by name)
        self,
        *,
        connection: Connection,
        namespace: str,
        core: Core,
        leading: asyncio.Event,
        is_current: Callable[[], bool],
        created: Callable[[Placeholder, str], None],
        written: Callable[[str, str], None],
    ) -> None:
        self._connection = connection
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._core = core
        self._leading = leading
        self._is_current = is_current
        self._created = created
        self._written = written

    async def run(self) -> None:
        """Keep the placeholders until it is canceled."""
        while True:
            await self._leading.wait()
            existing: Mapping[str, Json] = {}
            try:
                if self._is_current():
                    existing = await self._settle()
                await self._wait(existing)
            except KubeError as err:
                log.warning("Failed to write a placeholder", extra={"error": str(err)})
                await asyncio.sleep(CHECK_S)
            except Exception:
                # A bug must not end the process.
                log.exception("Placeholders failed")
                await asyncio.sleep(CHECK_S)

    async def _wait(self, existing: Mapping[str, Json]) -> None:
        """Wait until the next check, and meanwhile end placeholders whose pods have got a place."""
        until = time.monotonic() + CHECK_S
        remaining = dict(existing)
        while time.monotonic() < until:
            await asyncio.sleep(LOOK_S if remaining else CHECK_S)
            ended = [uid for uid in remaining if not self._core.needs_placeholder(uid)]
            for uid in ended:
                await self._delete(remaining.pop(uid))

    async def _settle(self) -> dict[str, Json]:
        """Compare what is there with what is wanted; returns what is there then, by the UID of the waiting pod."""
        listed = decoded(await self._connection.get(self._pods, {"labelSelector": FOR_LABEL}))
        wanted = {placeholder.uid: placeholder for placeholder in await self._wanted()}
        existing: dict[str, Json] = {}
        for pod in mappings(listed.get("items")):
            uid = text(mapping_at(pod, "metadata", "labels").get(FOR_LABEL))
            placeholder = wanted.get(uid)
            if placeholder is None or _units(pod) < placeholder.units:
                await self._delete(pod)
            else:
                existing[uid] = dict(pod)
        for uid, placeholder in wanted.items():
            if uid not in existing:
                await self._create(placeholder)
            elif not _is_unschedulable(existing[uid]):
                await self._mark(text(mapping_at(existing[uid], "metadata").get("name")), placeholder)
        made = {uid: _reference(placeholder) for uid, placeholder in wanted.items() if uid not in existing}
        return existing | made

    async def _wanted(self) -> list[Placeholder]:
        """The placeholders that are to be there. Between the steps of the look at all nodes, calls are answered."""
        look = self._core.look_for_placeholders(time.monotonic())
        while True:
            try:
                next(look)
            except StopIteration as end:
                wanted: list[Placeholder] = end.value
                return wanted
            await asyncio.sleep(STEP_GAP_S)

    async def _create(self, placeholder: Placeholder) -> None:
        waiting = await self._waiting_pod(placeholder)
        if waiting is None:
            return
        try:
            await self._connection.create(self._pods, _manifest(placeholder, waiting))
        except ApiError as err:
            if err.status != _CONFLICT:
                self._written("placeholder", "refused")
                reason = {"pod": str(placeholder.pod), "error": str(err)}
                log.warning("Failed to create a placeholder for a pod", extra=reason)
            return
        self._written("placeholder", "ok")
        name = _name(placeholder.uid)
        self._created(placeholder, name)
        await self._mark(name, placeholder)

    async def _mark(self, name: str, placeholder: Placeholder) -> None:
        """Say that no node takes the placeholder, as a scheduler would: autoscalers look at such pods only."""
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": f"a new node is needed for pod {placeholder.pod}",
            "lastTransitionTime": rfc3339(time.time()),
        }
        body = {"status": {"conditions": [condition]}}
        await self._connection.patch(f"{self._pods}/{name}/status", body, STRATEGIC_MERGE_PATCH)

    async def _delete(self, pod: Mapping[str, object]) -> None:
        name = text(mapping(pod.get("metadata")).get("name"))
        try:
            await self._connection.delete(f"{self._pods}/{name}", {"gracePeriodSeconds": 0})
        except ApiError as err:
            if err.status != _NOT_FOUND:
                raise
        self._written("placeholder-end", "ok")

    async def _waiting_pod(self, placeholder: Placeholder) -> Json | None:
        """The waiting pod as it is now; None if it is gone."""
        try:
            answer = await self._connection.get(pod_path(placeholder.pod))
        except ApiError as err:
            if err.status == _NOT_FOUND:
                return None
            raise
        pod = decoded(answer)
        # A later pod may have its name.
        is_the_same = mapping(pod.get("metadata")).get("uid") == placeholder.uid
        return pod if is_the_same else None


def _name(uid: str) -> str:
    return f"gpu-placeholder-{uid}"


def _reference(placeholder: Placeholder) -> Json:
    return {"metadata": {"name": _name(placeholder.uid)}}


def _units(pod: Mapping[str, object]) -> int:
    return dict(pod_facts(pod).requests.others).get(GPU_MEM, 0)


def _is_unschedulable(pod: Mapping[str, object]) -> bool:
    return bool(pod_facts(pod).unscheduled)


def _manifest(placeholder: Placeholder, waiting: Mapping[str, object]) -> Json:
    """A pod that goes where the waiting pod may go, as far as nodes decide that."""
    spec = mapping(waiting.get("spec"))
    amounts = _amounts(pod_facts(waiting).requests, placeholder.units)
    container = {
        "name": "placeholder",
        # It never runs.
        "image": "placeholder.invalid/gpuagent",
        "resources": {"requests": amounts, "limits": amounts},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    made: Json = {
        "schedulerName": PLACEHOLDER_SCHEDULER,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    }
    for field in ("nodeSelector", "tolerations"):
        if spec.get(field):
            made[field] = spec[field]
    required = mapping_at(spec, "affinity", "nodeAffinity").get(_REQUIRED)
    if required:
        made["affinity"] = {"nodeAffinity": {_REQUIRED: required}}
    metadata = {
        "name": _name(placeholder.uid),
        "labels": {FOR_LABEL: placeholder.uid},
        "annotations": {FOR_LABEL: str(placeholder.pod)},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": made}


def _amounts(requests: Resources, units: int) -> dict[str, str]:
    """What the placeholder asks for: as much as the waiting pod, apart from the units of memory."""
    amounts: dict[str, str] = {}
    if requests.cpu:
        amounts["cpu"] = f"{requests.cpu}m"
    if requests.memory:
        amounts["memory"] = str(requests.memory)
    for name, amount in requests.others:
        # These come with rules of their own about memory.
        if not name.startswith("hugepages-"):
            amounts[name] = str(amount)
    amounts[GPU_MEM] = str(units)
    return amounts
