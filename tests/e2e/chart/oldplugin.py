"""The open gpushare-device-plugin as kubelet and containers see it: what it registers, its ids, its answers.

Of its hand-shake only what reaches kubelet is here: the GPU is that of the pod's annotation, whatever ids kubelet has
picked, and the scheduler extender is the test.
"""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import grpc

from gpuagent._pb import deviceplugin_v1beta1_pb2 as pb
from gpuagent._pb import deviceplugin_v1beta1_pb2_grpc as rpc
from gpuagent.simulation import boxes
from tests.e2e.cluster import WAIT_S, Cluster, pod_manifest

PLUGINS = Path("/var/lib/kubelet/device-plugins")
SOCKET = "aliyungpushare.sock"
RESOURCE = "aliyun.com/gpu-mem"


class OldPlugin(rpc.DevicePluginServicer):
    """Serves and registers while it is entered."""

    def __init__(self, box: str) -> None:
        self.gpus = boxes.load(box).gpus
        self._units = self.gpus[0].memory_mib // 1024  # the first one's, for every GPU
        self._gone = threading.Event()
        self._chosen = -1

    def __enter__(self) -> Self:
        self._server = grpc.server(ThreadPoolExecutor(4))
        rpc.add_DevicePluginServicer_to_server(self, self._server)
        (PLUGINS / SOCKET).unlink(missing_ok=True)
        self._server.add_insecure_port(f"unix://{PLUGINS / SOCKET}")
        self._server.start()
        with grpc.insecure_channel(f"unix://{PLUGINS / 'kubelet.sock'}") as channel:
            request = pb.RegisterRequest(version="v1beta1", endpoint=SOCKET, resource_name=RESOURCE)
            rpc.RegistrationStub(channel).Register(request, timeout=WAIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """As when its pod is deleted."""
        self._gone.set()
        self._server.stop(0).wait()
        (PLUGINS / SOCKET).unlink(missing_ok=True)

    def run(self, cluster: Cluster, name: str, units: int, gpu: int) -> dict[str, Any]:
        """A pod that the scheduler extender sent to GPU `gpu`."""
        annotations = {
            "ALIYUN_COM_GPU_MEM_IDX": str(gpu),
            "ALIYUN_COM_GPU_MEM_DEV": str(self._units),
            "ALIYUN_COM_GPU_MEM_POD": str(units),
            "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
            "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1760000000000000000",
        }
        self._chosen = gpu
        manifest = pod_manifest(name, {RESOURCE: units}, annotations=annotations, restart_policy="Always")
        return cluster.run_pod(manifest)

    # -- what kubelet calls -----------------------------------------------------------------------------------------

    def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.DevicePluginOptions()

    def ListAndWatch(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        devices = [pb.Device(ID=f"{gpu.uuid}-_-{n}", health="Healthy") for gpu in self.gpus for n in range(self._units)]
        yield pb.ListAndWatchResponse(devices=devices)
        self._gone.wait()

    def Allocate(self, request: Any, context: Any) -> Any:  # noqa: N802
        return pb.AllocateResponse(
            container_responses=[self._container(one.devices_ids) for one in request.container_requests]
        )

    def GetPreferredAllocation(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError

    def PreStartContainer(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError

    def _container(self, ids: Sequence[str]) -> Any:
        env = {
            "NVIDIA_VISIBLE_DEVICES": str(self._chosen),
            "ALIYUN_COM_GPU_MEM_IDX": str(self._chosen),
            "ALIYUN_COM_GPU_MEM_POD": str(len(ids)),
            "ALIYUN_COM_GPU_MEM_CONTAINER": str(len(ids)),
            "ALIYUN_COM_GPU_MEM_DEV": str(self._units),
        }
        return pb.ContainerAllocateResponse(envs=env)
