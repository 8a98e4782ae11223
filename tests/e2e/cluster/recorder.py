"""Records what happens on the node of a cluster, for `simworld.recorded` to check when the run is over."""

import http.client
import json
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from gpuagent._pb import deviceplugin_v1beta1_pb2 as pb
from gpuagent.domain.pods.quantity import amount

from .api_client import ApiClient, ApiError
from .kubelet_files import CheckpointEntry, read_checkpoint
from .manifests import Json
from .runtime import Container, containers

_PODS = "/api/v1/pods"
_LOOK_S = 0.25
_SILENT_S = 3600.0
_DECISIONS = ("scheduler.framework.gpushare.", "gpushare.alibabacloud.com/")
_OURS = ("NVIDIA_", "ALIYUN_COM_", "CUDA_")

ContainerKey = tuple[str, str]
"""UID of the pod and name of the container."""


class Recorder:
    """Follows the pods by a watch, and looks at the node four times a second, until the end of the `with` block.

    A look is of one moment: a container counts if it ran before and after all of them were read. Kubelet's checkpoint
    is read after that, so it has what they were given.

    Attributes:
        path: of the recording, one JSON object a line.
        failure: why a thread has ended early.
    """

    def __init__(self, client: ApiClient, path: Path) -> None:
        self.path = path
        self.failure: Exception | None = None
        self._client = client
        self._over = threading.Event()
        self._writing = threading.Lock()
        self._living: dict[ContainerKey, Container] = {}
        self._given: dict[ContainerKey, Json] = {}
        self._pods: dict[str, Json] = {}
        self._looks = threading.Thread(target=self._look_until_over, name="recorder of the node", daemon=True)
        # It waits inside of a watch, so it ends with the API server or with the process.
        self._watch = threading.Thread(target=self._watch_until_over, name="recorder of pods", daemon=True)

    def __enter__(self) -> Self:
        self.path.touch()
        self._watch.start()
        self._looks.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._looks.join()

    def _write(self, line: Json) -> None:
        with self._writing:
            if self._over.is_set():
                return
            try:
                with self.path.open("a", encoding="utf-8") as recording:
                    recording.write(json.dumps({"at": time.time(), **line}) + "\n")
            except OSError as failure:
                # A line that lacks, such as a container's end, would look like a fault.
                self.failure = failure
                raise

    # -- the node -------------------------------------------------------------------------------------------------

    def _look_until_over(self) -> None:
        try:
            while not self._over.wait(_LOOK_S):
                # A file goes, or is being written, while it is read: the next look comes soon.
                with suppress(OSError, ValueError):
                    self._look()
        except Exception as failure:  # a recorder that ends silently would look like a node without faults
            self.failure = failure

    def _look(self) -> None:
        environments: dict[str, Mapping[str, str]] = {}
        candidates = {}
        for container in containers():
            if not container.name:
                continue
            environment = _environment(container)
            # Without this one, it is still the runtime's own process.
            if "KUBERNETES_SERVICE_HOST" in environment:
                candidates[container.id] = container
                environments[container.id] = environment
        # All of these run at this moment. What comes after it takes long on a busy machine.
        looked_at = time.time()
        living = {}
        for container in candidates.values():
            if _runs(container, environments):
                living[container.pod_uid, container.name] = container
        started = [key for key, found in living.items() if self._living.get(key) != found]
        ended = [key for key, found in self._living.items() if living.get(key) != found]
        if not started and not ended:
            return
        self._write_given()
        rows = [_started(key, environments[living[key].id]) for key in started]
        self._write({"at": looked_at, "kind": "running", "started": rows, "ended": [list(key) for key in ended]})
        self._living = living

    def _write_given(self) -> None:
        """What kubelet's checkpoint has that it had not at the last look."""
        by_container: dict[ContainerKey, list[CheckpointEntry]] = {}
        for entry in read_checkpoint().entries:
            by_container.setdefault((entry.pod_uid, entry.container), []).append(entry)
        for key, entries in by_container.items():
            resources = {entry.resource: _given(entry) for entry in entries}
            if self._given.get(key) != resources:
                self._write({"kind": "given", "uid": key[0], "container": key[1], "resources": resources})
        self._given = {
            key: {entry.resource: _given(entry) for entry in entries} for key, entries in by_container.items()
        }

    # -- pods -----------------------------------------------------------------------------------------------------

    def _watch_until_over(self) -> None:
        try:
            self._watch_pods()
        except Exception as failure:  # without the ends of pods, a node looks as if it had faults
            if not self._over.is_set():
                self.failure = failure

    def _watch_pods(self) -> None:
        while not self._over.is_set():
            try:
                listed = self._client.expect("GET", _PODS)
                self._relist(listed["items"])
                query = {"resourceVersion": listed["metadata"]["resourceVersion"]}
                for event in self._client.watch(_PODS, query, _SILENT_S):
                    if event["type"] == "ERROR":
                        break
                    self._see(event["object"], gone=event["type"] == "DELETED", listed=False)
            except (OSError, ValueError, http.client.HTTPException, ApiError):
                self._over.wait(0.2)  # the server is away

    def _relist(self, pods: Iterable[Json]) -> None:
        """Catch up after a gap, such as the time before the first watch."""
        there = {pod["metadata"]["uid"]: pod for pod in pods}
        for uid, pod in list(self._pods.items()):
            if uid not in there:
                self._see(pod, gone=True, listed=True)
        for pod in there.values():
            self._see(pod, gone=False, listed=True)

    def _see(self, pod: Json, *, gone: bool, listed: bool) -> None:
        uid = pod["metadata"]["uid"]
        before = self._pods.get(uid)
        if gone:
            self._pods.pop(uid, None)
        else:
            self._pods[uid] = pod
        line = _pod(pod)
        if gone or before is None or _pod(before) != line:
            self._write({"kind": "pod", **line, "gone": gone, "listed": listed})


def _environment(container: Container) -> Mapping[str, str]:
    try:
        return container.environment()
    except (OSError, ValueError):
        return {}  # it has ended, or has texts of its own


def _runs(container: Container, environments: Mapping[str, Mapping[str, str]]) -> bool:
    """Whether it is still the process whose environment was read."""
    is_same = _environment(container) == environments[container.id]
    return is_same and container.alive and container.has_own_process()


def _started(key: ContainerKey, environment: Mapping[str, str]) -> Json:
    ours = {name: value for name, value in environment.items() if name.startswith(_OURS)}
    return {"uid": key[0], "container": key[1], "env": ours}


def _given(entry: CheckpointEntry) -> Json:
    answer = pb.ContainerAllocateResponse.FromString(entry.answer)
    return {"ids": sorted(entry.ids), "env": dict(answer.envs)}


def _pod(pod: Json) -> Json:
    """What the checker needs of a pod."""
    metadata = pod["metadata"]
    status = pod.get("status") or {}
    annotations = metadata.get("annotations") or {}
    return {
        "uid": metadata["uid"],
        "name": f"{metadata['namespace']}/{metadata['name']}",
        "node": pod["spec"].get("nodeName", ""),
        "grace_s": pod["spec"].get("terminationGracePeriodSeconds", 30),
        "by_kubelet": _is_from_kubelet(metadata),
        "phase": status.get("phase", ""),
        "reason": status.get("reason", ""),
        "message": status.get("message", ""),
        "ended": _containers_ended(status),
        "annotations": {key: text for key, text in annotations.items() if key.startswith(_DECISIONS)},
        "containers": [_container(container) for container in pod["spec"]["containers"]],
        "init": [_container(container) for container in pod["spec"].get("initContainers") or ()],
    }


def _is_from_kubelet(metadata: Json) -> bool:
    """Whether kubelet wrote the reason in the pod's status. Tests write statuses, too."""
    for fields in metadata.get("managedFields") or ():
        written = fields.get("fieldsV1", {}).get("f:status", {})
        # A manager has the name of its binary, and ours have versions in theirs.
        if "f:reason" in written and fields.get("manager", "").startswith("kubelet"):
            return True
    return False


def _containers_ended(status: Json) -> bool:
    """Whether kubelet has reported that no container of the pod runs."""
    statuses = (*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ()))
    states = [container.get("state", {}) for container in statuses]
    # Kubelet has not found the container any more, so it has not seen the end.
    is_lost = any(state.get("terminated", {}).get("reason") == "ContainerStatusUnknown" for state in states)
    is_running = any("running" in state for state in states)
    return bool(states) and not is_lost and not is_running


def _container(container: Json) -> Json:
    limits = (container.get("resources") or {}).get("limits") or {}
    return {
        "name": container["name"],
        "asks": {resource: amount(text) for resource, text in limits.items() if "/" in resource},
        "sets": [variable["name"] for variable in container.get("env") or ()],
    }
