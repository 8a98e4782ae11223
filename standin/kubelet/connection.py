"""Kubelet's side of a connection to a device plugin."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from gpuagent._pb import deviceplugin_v1beta1_pb2 as dp
from gpuagent._pb import deviceplugin_v1beta1_pb2_grpc as dp_grpc
from standin.waiting import PATIENCE_S

RECEIVE_LIMIT = 4_194_304
_RETRY_S = 0.02
_OPTIONS = (
    ("grpc.max_receive_message_length", RECEIVE_LIMIT),
    ("grpc.max_send_message_length", -1),
    ("grpc.default_authority", "localhost"),
    # Two dials of one path are two connections, as in kubelet.
    ("grpc.use_local_subchannel_pool", 1),
    # A call that meets a server going down is retried by grpcio and then sometimes never ends.
    ("grpc.enable_retries", 0),
)
_T = TypeVar("_T")


class CallError(Exception):
    """A call failed; the text is how kubelet words it."""


def go_text(error: grpc.RpcError) -> str:
    """A gRPC error as Go prints it."""
    if not isinstance(error, grpc.Call):
        return str(error)
    code: grpc.StatusCode = error.code()
    name = "".join(word.capitalize() for word in code.name.split("_"))
    # Go spells one code with a single l.
    return f"rpc error: code = {'Canceled' if name == 'Cancelled' else name} desc = {error.details()}"


class Connection:
    """One connection to the socket of a plugin."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._channel = grpc.insecure_channel(f"unix:{path}", options=_OPTIONS)
        self.stub = dp_grpc.DevicePluginStub(self._channel)
        self._dialled = False
        self._closed = threading.Event()

    def dial(self, timeout: float) -> None:
        """Wait until the plugin listens; kubelet blocks for up to 10 s here.

        A separate connection, closed at once, shows whether it listens. gRPC would use a polling thread, which fails
        with an exception when the channel is closed meanwhile.
        """
        end = time.monotonic() + timeout
        while not self._listens():
            if self._closed.wait(_RETRY_S):
                raise CallError("failed to dial device plugin: context canceled")
            if time.monotonic() > end:
                raise CallError("failed to dial device plugin: context deadline exceeded")
        self._dialled = True

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.path))
            except OSError:
                return False
        return True

    def call(self, method: Callable[..., _T], request: Message, timeout: float | None = None) -> _T:
        """Make a unary call of this connection's stub."""
        try:
            return method(request, timeout=timeout)
        except grpc.RpcError as error:
            raise CallError(go_text(error)) from error
        except ValueError as error:  # grpcio's answer on a channel that is closed.
            raise CallError("rpc error: code = Canceled desc = grpc: the client connection is closing") from error

    def watch(self, on_list: Callable[[dp.ListAndWatchResponse], None]) -> str:
        """Call ``ListAndWatch`` and hand on every list until the stream ends; the reason, as Go words it."""
        try:
            for message in self.stub.ListAndWatch(dp.Empty()):
                on_list(message)
        except grpc.RpcError as error:
            return go_text(error)
        except ValueError:
            return "the connection was closed before the call"
        return "EOF"

    def drop(self) -> None:
        """Close the connection if there is one; a dial in progress continues, as in kubelet."""
        if self._dialled:
            self.close()

    def close(self) -> None:
        """Drop the connection and every call on it, and end a dial."""
        self._closed.set()
        self._channel.close()


class Stream:
    """One more ``ListAndWatch`` on a connection of its own, for tests; it reads only on request."""

    def __init__(self, path: Path, *, timeout: float = PATIENCE_S) -> None:
        self._connection = Connection(path)
        self._connection.dial(timeout)
        self._call = self._connection.stub.ListAndWatch(dp.Empty())
        self._changed = threading.Condition()
        self._reader: threading.Thread | None = None
        self.messages: list[dp.ListAndWatchResponse] = []
        self.ended = ""

    def read(self) -> None:
        """Start to read."""
        self._reader = threading.Thread(target=self._run, name="standin-stream", daemon=True)
        self._reader.start()

    def _run(self) -> None:
        ended = "EOF"
        try:
            for message in self._call:
                with self._changed:
                    self.messages.append(message)
                    self._changed.notify_all()
        except grpc.RpcError as error:
            ended = go_text(error)
        with self._changed:
            self.ended = ended
            self._changed.notify_all()

    def wait(self, predicate: Callable[[], bool], timeout: float = PATIENCE_S) -> bool:
        """Wait until the predicate holds; it is evaluated at every message and at the end."""
        with self._changed:
            return self._changed.wait_for(predicate, timeout)

    def quiet(self, quiet_s: float) -> int:
        """Wait until no message came for ``quiet_s``; how many there are."""
        with self._changed:
            while True:
                count = len(self.messages)
                # Notified only for a message or the end.
                if self.ended or not self._changed.wait(quiet_s):
                    return count

    def cancel(self) -> None:
        """End the stream without waiting for its reader."""
        self._call.cancel()

    def close(self) -> None:
        """End the stream."""
        self.cancel()
        self._connection.close()
        if self._reader is not None:
            self._reader.join()
