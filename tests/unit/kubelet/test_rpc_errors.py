"""What people read where gRPC fails: the operating system's reason and what to do, never gRPC's own words."""

import errno
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from gpuagent.kubelet import rpc_errors
from gpuagent.kubelet.pod_resources import PodResources
from gpuagent.kubelet.rpc_errors import bind, call_error

GRPCS_OWN = ("grpc", "GRPC", "UNKNOWN", "UNAVAILABLE", "DEADLINE", "StatusCode", "errors", "unix:")


def unbound(path: Path) -> str:
    server = grpc.server(ThreadPoolExecutor(1))
    with pytest.raises(OSError) as raised:
        bind(server, path)
    text = str(raised.value)
    assert not [word for word in GRPCS_OWN if word in text], text
    return text


def test_a_directory_that_is_missing(tmp_path):
    text = unbound(tmp_path / "absent" / "gpuagent-1.sock")
    expected = f"no socket can be made in {tmp_path}/absent: No such file or directory; mount kubelet's directory"
    assert text.startswith(expected)


def test_a_directory_that_is_a_file(tmp_path):
    (tmp_path / "file").touch()
    assert "Not a directory" in unbound(tmp_path / "file" / "gpuagent-1.sock")


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.EACCES, "SELinux"), (errno.EPERM, "SELinux"), (errno.EROFS, "mount"), (errno.ENOSPC, "free space")],
)
def test_what_the_system_refuses_is_said_with_what_to_do(tmp_path, monkeypatch, number, advice):
    monkeypatch.setattr(rpc_errors, "_bind_error", lambda _path: number)
    text = unbound(tmp_path / "absent" / "gpuagent-1.sock")
    assert os.strerror(number) in text
    assert advice in text


def test_every_try_at_one_directory_has_one_text():
    names = ["gpuagent-gpu-1.sock", "gpuagent-gpu-mem-2.sock", "gpuagent-gpu-core.percentage-3.sock"]
    assert len({unbound(Path("/absent") / name) for name in names}) == 1
    long = Path("/absent") / ("x" * 100)
    assert len({unbound(long / name) for name in names}) == 1
    assert "use a shorter --kubelet-dir" in unbound(long / names[0])


def called(path: Path, timeout_s: float = 30.0) -> str:
    with grpc.insecure_channel(f"unix:{path}") as channel, pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary("/v1.PodResourcesLister/List")(b"", timeout=timeout_s)
    text = call_error(raised.value, path, timeout_s)
    assert not [word for word in GRPCS_OWN if word in text], text
    return text


def test_a_socket_that_is_missing_or_stale(tmp_path):
    path = tmp_path / "kubelet.sock"
    assert called(path) == f"kubelet does not listen on {path}"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    assert called(path) == f"kubelet does not listen on {path}"


def test_a_socket_that_is_no_socket(tmp_path):
    path = tmp_path / "kubelet.sock"
    path.touch()
    assert called(path) == f"kubelet does not listen on {path}"


def test_another_program_on_the_socket_and_one_that_is_silent(tmp_path):
    path = tmp_path / "kubelet.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        assert called(path, timeout_s=0.5) == "no answer within 0.5 s"

        def hang_up() -> None:
            while True:
                try:
                    other.accept()[0].close()
                except OSError:
                    return

        closing = threading.Thread(target=hang_up)
        closing.start()
        text = called(path)
        other.shutdown(socket.SHUT_RDWR)
        closing.join()
    assert text == f"kubelet closed the connection to {path}"


def test_a_kubelet_without_this_api(tmp_path):
    path = tmp_path / "kubelet.sock"
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        assert called(path) == f"kubelet does not serve this API on {path}"
        client = PodResources(path)
        assert client.list() is None
        assert client.problem == f"kubelet does not serve this API on {path}"
        client.close()
    finally:
        server.stop(None).wait()
