"""A tiny device plugin, to check the stand-in kubelet with."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc

from gpuagent._pb import deviceplugin_v1beta1_pb2 as dp
from gpuagent._pb import deviceplugin_v1beta1_pb2_grpc as dp_grpc
from gpuagent._pb import podresources_v1_pb2_grpc as pr_grpc
from standin.kubelet.kubelet import Kubelet
from standin.waiting import PATIENCE_S

MEM = "aliyun.com/gpu-mem"
CORE = "aliyun.com/gpu-core.percentage"
_numbers = itertools.count(1)


def devices(*ids: str, health: str = "Healthy", numa: Sequence[int] = ()) -> list[dp.Device]:
    nodes = [dp.NUMANode(ID=node) for node in numa]
    topology = dp.TopologyInfo(nodes=nodes) if nodes else None
    return [dp.Device(ID=one, health=health, topology=topology) for one in ids]


@contextmanager
def pod_resources(kubelet: Kubelet) -> Iterator[pr_grpc.PodResourcesListerStub]:
    options = (("grpc.use_local_subchannel_pool", 1),)
    with grpc.insecure_channel(f"unix:{kubelet.pod_resources_socket}", options=options) as channel:
        yield pr_grpc.PodResourcesListerStub(channel)


class SamplePlugin(dp_grpc.DevicePluginServicer):
    """Serves one resource on one socket; what it answers can be replaced."""

    def __init__(self, directory: Path, resource: str, listed: list[dp.Device] | None, *, name: str = "") -> None:
        self.directory, self.resource = directory, resource
        self.endpoint = name or f"p{next(_numbers)}.sock"
        self.options = dp.DevicePluginOptions()
        self.asked: list[dp.ContainerPreferredAllocationRequest] = []
        self.allocated: list[list[str]] = []
        self.prefer: Callable[[dp.ContainerPreferredAllocationRequest], list[str]] = lambda request: []
        self.answer: Callable[[list[str]], dp.AllocateResponse] = lambda ids: dp.AllocateResponse(
            container_responses=[dp.ContainerAllocateResponse(envs={self.resource: ",".join(sorted(ids))})]
        )
        self.pre_start: Callable[[list[str]], None] = lambda ids: None
        self.options_asked = 0
        self._listed, self._version = listed, 0
        self._changed = threading.Condition()
        self._ended = False
        self._streams = 0
        self._executor = ThreadPoolExecutor(16)
        self._server = grpc.server(self._executor, options=(("grpc.max_receive_message_length", -1),))
        dp_grpc.add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{directory / self.endpoint}")
        self._server.start()

    def register(
        self, *, timeout: float = PATIENCE_S, version: str = "v1beta1", options: dp.DevicePluginOptions | None = None
    ) -> None:
        with grpc.insecure_channel(
            f"unix:{self.directory / 'kubelet.sock'}", options=(("grpc.use_local_subchannel_pool", 1),)
        ) as channel:
            dp_grpc.RegistrationStub(channel).Register(
                dp.RegisterRequest(
                    version=version,
                    endpoint=self.endpoint,
                    resource_name=self.resource,
                    options=options or self.options,
                ),
                timeout=timeout,
            )

    def send(self, listed: list[dp.Device]) -> None:
        with self._changed:
            self._listed, self._version = listed, self._version + 1
            self._changed.notify_all()

    def end_streams(self) -> None:
        """End the streams that are open now; later ones live."""
        with self._changed:
            self._streams += 1
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._server.stop(None).wait()
        self._executor.shutdown()

    def GetDevicePluginOptions(self, request: dp.Empty, context: grpc.ServicerContext) -> dp.DevicePluginOptions:
        self.options_asked += 1
        return self.options

    def ListAndWatch(self, request: dp.Empty, context: grpc.ServicerContext) -> Iterator[dp.ListAndWatchResponse]:
        def wake() -> None:
            with self._changed:
                self._changed.notify_all()

        context.add_callback(wake)
        sent, generation = -1, self._streams
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: (
                        self._ended
                        or generation != self._streams
                        or not context.is_active()
                        or (self._listed is not None and sent != self._version)
                    )
                )
                if self._ended or generation != self._streams or not context.is_active():
                    return
                sent, listed = self._version, self._listed
            yield dp.ListAndWatchResponse(devices=listed)

    def GetPreferredAllocation(
        self, request: dp.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> dp.PreferredAllocationResponse:
        (one,) = request.container_requests
        self.asked.append(one)
        try:
            chosen = self.prefer(one)
        except ValueError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return dp.PreferredAllocationResponse(
            container_responses=[dp.ContainerPreferredAllocationResponse(deviceIDs=chosen)]
        )

    def Allocate(self, request: dp.AllocateRequest, context: grpc.ServicerContext) -> dp.AllocateResponse:
        (one,) = request.container_requests
        self.allocated.append(sorted(one.devices_ids))
        try:
            return self.answer(list(one.devices_ids))
        except ValueError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    def PreStartContainer(
        self, request: dp.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> dp.PreStartContainerResponse:
        try:
            self.pre_start(list(request.devices_ids))
        except ValueError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return dp.PreStartContainerResponse()
