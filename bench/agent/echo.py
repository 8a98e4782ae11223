"""A bare grpcio server to compare with, in a process of its own: `python -m bench.agent.echo SOCKET parsed|bytes`.

It answers every method with the last answer that `/bench.Echo/Set` received (``method name, newline, answer``). As
``parsed`` it decodes requests and encodes answers, as any protobuf service must do. As ``bytes`` it does neither. After
`/bench.Echo/Ask` (``socket, newline, pod``) it asks kubelet for that pod before it answers GetPreferredAllocation; an
empty request ends that.
"""

import argparse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import grpc

from gpuagent._pb import deviceplugin_v1beta1_pb2 as pb
from gpuagent._pb import podresources_v1_pb2 as pr
from gpuagent._pb import podresources_v1_pb2_grpc as pr_grpc
from gpuagent.system.stop_signal import StopSignal

WORKERS = 16
SERVICE = "v1beta1.DevicePlugin"
TYPES: dict[str, tuple[Any, Any]] = {
    "Allocate": (pb.AllocateRequest, pb.AllocateResponse),
    "GetPreferredAllocation": (pb.PreferredAllocationRequest, pb.PreferredAllocationResponse),
    "PreStartContainer": (pb.PreStartContainerRequest, pb.PreStartContainerResponse),
}


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("socket")
    parser.add_argument("how", choices=["parsed", "bytes"])
    options = parser.parse_args()
    server = serve(options.socket, parsed=options.how == "parsed")
    stop = StopSignal()
    stop.wait()
    server.stop(None)


def serve(path: str, *, parsed: bool) -> grpc.Server:
    """Start the server at `path`."""
    answers: dict[str, Any] = {}

    def take(request: bytes, context: grpc.ServicerContext) -> bytes:  # noqa: ARG001 (gRPC gives it)
        method, _, answer = request.partition(b"\n")
        name = method.decode()
        answers[name] = TYPES[name][1].FromString(answer) if parsed else answer
        return b""

    kubelet = ExitStack()
    ask_first: dict[str, Callable[[], object]] = {}

    def ask(request: bytes, context: grpc.ServicerContext) -> bytes:  # noqa: ARG001
        socket, _, pod = request.decode().partition("\n")
        ask_first.clear()
        kubelet.close()
        if pod:
            options = [("grpc.default_authority", "localhost")]
            stub = pr_grpc.PodResourcesListerStub(
                kubelet.enter_context(grpc.insecure_channel(f"unix:{socket}", options=options))
            )
            question = pr.GetPodResourcesRequest(pod_name=pod, pod_namespace="default")
            ask_first["GetPreferredAllocation"] = lambda: stub.Get(question, timeout=1)
        return b""

    def answer(name: str) -> Callable[[Any, grpc.ServicerContext], Any]:
        def answered(*_: object) -> Any:  # noqa: ANN401
            if name in ask_first:
                ask_first[name]()
            return answers[name]

        return answered

    def handler(name: str) -> Any:  # noqa: ANN401 (grpc's own type has no name)
        request, response = TYPES[name]
        return grpc.unary_unary_rpc_method_handler(
            answer(name),
            request_deserializer=request.FromString if parsed else None,
            response_serializer=response.SerializeToString if parsed else None,
        )

    server = grpc.server(ThreadPoolExecutor(WORKERS), options=[("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(SERVICE, {name: handler(name) for name in TYPES}),
            grpc.method_handlers_generic_handler(
                "bench.Echo",
                {"Set": grpc.unary_unary_rpc_method_handler(take), "Ask": grpc.unary_unary_rpc_method_handler(ask)},
            ),
        )
    )
    server.add_insecure_port(f"unix:{path}")
    server.start()
    return server


if __name__ == "__main__":
    main()
