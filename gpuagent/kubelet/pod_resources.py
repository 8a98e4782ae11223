"""Kubelet's pod-resources API: the device ids that each container holds."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import grpc

from gpuagent._pb import podresources_v1_pb2 as pb
from gpuagent._pb import podresources_v1_pb2_grpc as pb_grpc
from gpuagent.domain.deviceplugin.admission.kubelet_listing import Listed
from gpuagent.domain.pods.pod import ContainerRef, Holding, PodName
from gpuagent.kubelet.rpc_errors import call_error

_T = TypeVar("_T")

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
CALL_DEADLINE_S = 5.0
LOOK_DEADLINE_S = 3.0
"""Deadline of a query while kubelet admits a pod.

Long, because a busy node may stand still for a second. Without an answer, a pod that may have a decision is refused,
and kubelet never admits it again.
"""
LIMITED_PAUSE_S = 0.012
"""Pause before a call is repeated that is beyond kubelet's limit of 100 a second.

Kubelet waits for the agent's answer meanwhile, and a short wait is better than a guess.
"""
RETRY_DEADLINE_S = 0.5
"""Deadline of the query after one without an answer: one slow answer must not cost the pods that follow.

A busy node that stood still for a second needs some time after that, too, and a pod that is refused is never admitted.
"""
SILENT_S = 5.0
"""After two queries in a row without an answer, the agent sends none for this long: each makes an admission wait."""
MOST_GOT = 8
"""Pods that are read one by one for one question; kubelet takes a burst of 10 calls."""
_SILENT = {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED}


class PodResources:
    """Client of one kubelet's pod-resources socket. It never raises `grpc.RpcError`: None means no answer."""

    def __init__(self, socket_path: Path) -> None:
        options = [
            ("grpc.default_authority", "localhost"),
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            # A restarted kubelet is a new listener: look for it at once rather than after a growing pause.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
        ]
        self._socket = socket_path
        self._channel = grpc.insecure_channel(f"unix:{socket_path}", options=options)
        self._stub = pb_grpc.PodResourcesListerStub(self._channel)
        # Kubelets up to 1.19 serve v1alpha1 only, whose messages these decode too.
        self._list_v1alpha1 = self._channel.unary_unary(
            "/v1alpha1.PodResourcesLister/List",
            request_serializer=pb.ListPodResourcesRequest.SerializeToString,
            response_deserializer=pb.ListPodResourcesResponse.FromString,
        )
        self.problem = ""
        self._serves_get = True
        self._deadline_s = LOOK_DEADLINE_S
        self._silent_until = 0.0

    def list(self) -> tuple[Holding, ...] | None:
        """Everything held by pods of this node; None, with `problem` set, if kubelet did not answer."""
        try:
            return _holdings(self._listed(CALL_DEADLINE_S))
        except grpc.RpcError as err:
            self._serves_get = True  # it may come back as another version
            self.problem = call_error(err, self._socket, CALL_DEADLINE_S)
        except ValueError:  # the channel is closed: the agent ends
            self.problem = "closed"
        return None

    def query(self, pods: Collection[PodName] | None, *, listing: bool) -> Listed | None:
        """As `KubeletAllocations.query`: one with `Get` if kubelet answers it, and several with `List` if it may."""
        if time.monotonic() < self._silent_until:
            return None
        wanted = None if pods is None else set(pods)
        try:
            answer = self._pods(wanted, listing=listing)
        except grpc.RpcError as err:
            if err.code() in _SILENT:
                self._note_silence()
            return None
        except ValueError:  # the channel is closed: the agent ends
            return None
        if answer is None:
            return None
        self._deadline_s = LOOK_DEADLINE_S
        return [(PodName(pod.namespace, pod.name), _holdings([pod])) for pod in answer]

    def _pods(self, wanted: set[PodName] | None, *, listing: bool) -> Sequence[pb.PodResources] | None:
        most_got = 1 if listing else MOST_GOT
        if wanted and len(wanted) <= most_got and self._serves_get:
            answer = self._get_each(wanted)
            if answer is not None:
                return answer
        if not listing:
            return None
        listed = self._patient(self._listed)
        return [pod for pod in listed if wanted is None or (pod.namespace, pod.name) in wanted]

    def _note_silence(self) -> None:
        """Wait less for the next answer, and after a second one that did not come, for none at all for a while."""
        is_second = self._deadline_s < LOOK_DEADLINE_S
        if is_second:
            self._silent_until = time.monotonic() + SILENT_S
            self._deadline_s = LOOK_DEADLINE_S
        else:
            self._silent_until = 0.0
            self._deadline_s = RETRY_DEADLINE_S

    def _get_each(self, pods: Iterable[PodName]) -> Sequence[pb.PodResources] | None:
        """Those of the pods that kubelet has; None if it does not answer `Get`."""
        answers: list[pb.PodResources] = []
        for pod in pods:
            answer = self._get(pod)
            if answer is None:
                return None
            answers += answer
        return answers

    def _get(self, pod: PodName) -> Sequence[pb.PodResources] | None:
        """The pod, if kubelet has it; None if kubelet does not answer `Get`."""
        request = pb.GetPodResourcesRequest(pod_name=pod.name, pod_namespace=pod.namespace)
        try:
            answer = self._patient(lambda timeout_s: self._stub.Get(request, timeout=timeout_s))
        except grpc.RpcError as err:
            text = err.details() or ""
            if err.code() is grpc.StatusCode.UNIMPLEMENTED or "Get method disabled" in text:
                self._serves_get = False
                return None
            if "not found" in text:  # with code UNKNOWN, also for a pod that has ended
                return []
            raise
        return [answer.pod_resources]

    def _listed(self, timeout_s: float) -> Iterable[pb.PodResources]:
        request = pb.ListPodResourcesRequest()
        try:
            return self._stub.List(request, timeout=timeout_s).pod_resources
        except grpc.RpcError as err:
            if err.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise
            return self._list_v1alpha1(request, timeout=timeout_s).pod_resources

    def _patient(self, call: Callable[[float], _T]) -> _T:
        """Repeat a call that kubelet's rate limit refuses. `call` takes its timeout in seconds."""
        until = time.monotonic() + self._deadline_s
        while True:
            try:
                return call(self._deadline_s)
            except grpc.RpcError as err:
                if err.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED or time.monotonic() > until:
                    raise
            time.sleep(LIMITED_PAUSE_S)

    def close(self) -> None:
        self._channel.close()


def _holdings(pods: Iterable[pb.PodResources]) -> tuple[Holding, ...]:
    ids: dict[tuple[ContainerRef, str], set[str]] = defaultdict(set)
    for pod in pods:
        for container in pod.containers:
            owner = ContainerRef(PodName(pod.namespace, pod.name), container.name)
            # Kubelet may list one resource of a container in several entries.
            for entry in container.devices:
                ids[owner, entry.resource_name].update(entry.device_ids)
    holdings = []
    for (owner, resource), held in ids.items():
        holdings.append(Holding(owner, resource, frozenset(held)))
    return tuple(holdings)
