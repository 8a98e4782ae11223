"""A second DRA driver on the node, which fails or hangs as a test wants."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import grpc

from gpuagent._pb import dra_v1_pb2 as pb
from gpuagent._pb import dra_v1_pb2_grpc as pb_grpc
from gpuagent._pb import pluginregistration_v1_pb2 as reg
from gpuagent._pb import pluginregistration_v1_pb2_grpc as reg_grpc

OTHER = "other.example.com"


class OtherDriver(pb_grpc.DRAPluginServicer, reg_grpc.RegistrationServicer):
    """Serves both of its services on one socket, which kubelet allows; also a context manager.

    Args:
        kubelet_dir: kubelet's own folder.
        name: of the driver.

    Attributes:
        error: what calls are answered with; empty where they succeed.
        answering: calls wait for it.
        asked: names of the calls so far.
    """

    def __init__(self, kubelet_dir: Path, name: str = OTHER) -> None:
        self._name = name
        self.error, self.asked = "", list[str]()
        self.answering = threading.Event()
        self.answering.set()
        self._executor = ThreadPoolExecutor(4)
        self._server = grpc.server(self._executor)
        pb_grpc.add_DRAPluginServicer_to_server(self, self._server)
        reg_grpc.add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{kubelet_dir / 'plugins_registry' / name}.sock")

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.answering.set()
        self._server.stop(None).wait()
        self._executor.shutdown()

    def GetInfo(self, request: Any, context: Any) -> reg.PluginInfo:
        return reg.PluginInfo(type="DRAPlugin", name=self._name, supported_versions=["v1.DRAPlugin"])

    def NotifyRegistrationStatus(self, request: Any, context: Any) -> reg.RegistrationStatusResponse:
        return reg.RegistrationStatusResponse()

    def NodePrepareResources(self, request: Any, context: Any) -> pb.NodePrepareResourcesResponse:
        return self._answer("NodePrepareResources", request, pb.NodePrepareResourcesResponse())

    def NodeUnprepareResources(self, request: Any, context: Any) -> pb.NodeUnprepareResourcesResponse:
        return self._answer("NodeUnprepareResources", request, pb.NodeUnprepareResourcesResponse())

    def _answer(self, method: str, request: Any, answer: Any) -> Any:
        self.asked.append(method)
        self.answering.wait()
        for claim in request.claims:
            answer.claims[claim.uid].error = self.error
        return answer
