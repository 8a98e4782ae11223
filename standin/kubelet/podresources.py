"""Kubelet's pod-resources service."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import NoReturn

import grpc

from gpuagent._pb import podresources_v1_pb2 as pr
from gpuagent._pb import podresources_v1_pb2_grpc as pr_grpc
from standin.kubelet.devices import Held
from standin.kubelet.pods import Pod
from standin.kubelet.state import State


class RateLimit:
    """A token bucket: 100 calls a second, 10 at once, shared by all clients."""

    def __init__(self, rate: float = 100.0, burst: int = 10, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._tokens, self._at = float(burst), clock()
        self._lock = threading.Lock()

    def allow(self) -> bool:
        """Take a token if there is one."""
        with self._lock:
            now = self._clock()
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
            self._at = now
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True


class PodResources(pr_grpc.PodResourcesListerServicer):
    """Answers who holds what.

    Args:
        pods: the pods of the node, each with whether it is active.
        active: UIDs of the pods whose devices are not collected.
    """

    def __init__(
        self, state: State, pods: Callable[[], Iterable[tuple[Pod, bool]]], active: Callable[[], Collection[str]]
    ) -> None:
        self._state = state
        self._pods = pods
        self._active = active
        self._limit = RateLimit()

    def add_to(self, server: grpc.Server) -> None:
        """Serve v1alpha1, and v1 where the version has it; the messages of both are encoded the same."""
        if self._state.personality.pod_resources_v1:
            pr_grpc.add_PodResourcesListerServicer_to_server(self, server)
        handler = grpc.unary_unary_rpc_method_handler(
            self.List,
            request_deserializer=pr.ListPodResourcesRequest.FromString,
            response_serializer=pr.ListPodResourcesResponse.SerializeToString,
        )
        alpha = grpc.method_handlers_generic_handler("v1alpha1.PodResourcesLister", {"List": handler})
        server.add_generic_rpc_handlers((alpha,))

    def List(self, request: pr.ListPodResourcesRequest, context: grpc.ServicerContext) -> pr.ListPodResourcesResponse:
        """Every pod; collects the devices of ended ones first."""
        self._admit_call(context)
        state = self._state
        # Kubelet reads the pods before it takes its lock. On a busy machine, a pod admitted in between would often
        # lose its devices here.
        with state.change():
            state.devices.collect(self._active())
            every = not state.personality.lists_active_pods_only
            pods = [pod for pod, is_active in self._pods() if is_active or every]
            return pr.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in pods])

    def GetAllocatableResources(
        self, request: pr.AllocatableResourcesRequest, context: grpc.ServicerContext
    ) -> pr.AllocatableResourcesResponse:
        """Every healthy device."""
        self._admit_call(context)
        if not self._state.personality.pod_resources_allocatable:
            self._fail(context, "Pod Resources API GetAllocatableResources disabled")
        with self._state.changed:
            devices = self._state.devices
            return pr.AllocatableResourcesResponse(
                devices=[
                    pr.ContainerDevices(resource_name=resource, device_ids=[device])
                    for resource, ids in devices.healthy.items()
                    for device in sorted(ids)
                    for _ in devices.numa[resource][device] or (None,)
                ]
            )

    def Get(self, request: pr.GetPodResourcesRequest, context: grpc.ServicerContext) -> pr.GetPodResourcesResponse:
        """One active pod; collects nothing."""
        self._admit_call(context)
        if self._state.personality.minor < 27:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method Get for service v1.PodResourcesLister")
        if not self._state.personality.pod_resources_get:
            self._fail(context, "PodResources API Get method disabled")
        wanted = (request.pod_namespace, request.pod_name)
        found = [pod for pod, is_active in self._pods() if is_active and (pod.namespace, pod.name) == wanted]
        if not found:
            self._fail(context, f"pod {request.pod_name} in namespace {request.pod_namespace} not found")
        with self._state.changed:
            # Kubelet's pod manager has the latest pod of each name.
            return pr.GetPodResourcesResponse(pod_resources=self._pod(found[-1]))

    def _admit_call(self, context: grpc.ServicerContext) -> None:
        if self._state.personality.pod_resources_limited and not self._limit.allow():
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")

    @staticmethod
    def _fail(context: grpc.ServicerContext, text: str) -> NoReturn:
        context.abort(grpc.StatusCode.UNKNOWN, text)
        raise AssertionError("abort raises")

    def _pod(self, pod: Pod) -> pr.PodResources:
        return pr.PodResources(
            name=pod.name,
            namespace=pod.namespace,
            containers=[
                pr.ContainerResources(
                    name=container.name,
                    devices=[
                        entry
                        for resource, held in self._state.devices.container(pod.uid, container.name).items()
                        for entry in self._entries(resource, held)
                    ],
                )
                for container in pod.lasting()
            ],
        )

    def _entries(self, resource: str, held: Held) -> list[pr.ContainerDevices]:
        """One entry per id and NUMA node; 1.18 and 1.19 send one per resource."""
        if not self._state.personality.pod_resources_by_id:
            return [pr.ContainerDevices(resource_name=resource, device_ids=sorted(held.ids))]
        return [
            pr.ContainerDevices(resource_name=resource, device_ids=[device])
            for ids in held.by_numa.values()
            for device in ids
        ]
