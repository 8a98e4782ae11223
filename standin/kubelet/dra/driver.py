"""Kubelet's side of a connection to a DRA driver."""

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from standin.kubelet.connection import CallError, go_text

SERVICES = {f"{version}.DRAPlugin": f"k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin" for version in ("v1", "v1beta1")}
"""gRPC service for each name in ``supported_versions``."""
_OPTIONS = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))
_Answer = TypeVar("_Answer", bound=Message)


@dataclass(frozen=True, slots=True)
class DriverCall:
    """One call about claims, as it ended."""

    method: str
    endpoint: str
    service: str
    claims: tuple[str, ...]
    """Their UIDs."""
    error: str


class Driver:
    """One instance of a driver."""

    def __init__(self, name: str, endpoint: Path, service: str, health_service: str) -> None:
        self.name, self.endpoint, self.service, self.health_service = name, endpoint, service, health_service
        self.closed = threading.Event()
        self._channel = grpc.insecure_channel(f"unix:{endpoint}", options=_OPTIONS)

    @property
    def connected(self) -> bool:
        """Whether the instance listens."""
        return listens(self.endpoint)

    def call(self, method: str, request: Message, answers: type[_Answer], timeout: float) -> _Answer:
        """Call its service. Raises CallError."""
        return unary(self._channel, f"/{SERVICES[self.service]}/{method}", request, answers, timeout)

    def stream(self, path: str, request: Message, answers: type[_Answer]) -> Iterator[_Answer]:
        """Call another of its services, which answers until it ends. Raises CallError."""
        made: grpc.UnaryStreamMultiCallable[Any, _Answer] = self._channel.unary_stream(
            path, request_serializer=lambda one: one.SerializeToString(), response_deserializer=answers.FromString
        )
        try:
            yield from made(request)
        except (grpc.RpcError, ValueError) as error:  # the second one on a channel that is closed
            raise CallError(str(error)) from error

    def close(self) -> None:
        """Drop the connection and every call on it."""
        self.closed.set()
        self._channel.close()


def unary(channel: grpc.Channel, path: str, request: Message, answers: type[_Answer], timeout: float) -> _Answer:
    """Make one call. Raises CallError, with the text as Go prints it."""
    try:
        made: grpc.UnaryUnaryMultiCallable[Any, _Answer] = channel.unary_unary(
            path, request_serializer=lambda one: one.SerializeToString(), response_deserializer=answers.FromString
        )
        answer: _Answer = made(request, timeout=timeout)
    except grpc.RpcError as error:
        raise CallError(go_text(error)) from error
    except ValueError as error:  # grpcio's answer on a channel that is closed
        raise CallError("rpc error: code = Canceled desc = grpc: the client connection is closing") from error
    return answer


def open_channel(path: Path) -> grpc.Channel:
    """A connection of its own to the socket."""
    return grpc.insecure_channel(f"unix:{path}", options=_OPTIONS)


def listens(path: Path) -> bool:
    """Whether a process accepts connections at the socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
