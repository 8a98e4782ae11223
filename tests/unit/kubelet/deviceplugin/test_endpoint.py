"""What an endpoint leaves in kubelet's directory, and what it removes there."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuagent.kubelet.deviceplugin.endpoint import SOCKET_PREFIX, sweep


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    made: list[socket.socket] = []
    yield made
    for one in made:
        one.close()


def test_only_sockets_of_this_agent_without_a_listener_are_removed(
    tmp_path: Path, sockets: list[socket.socket]
) -> None:
    """Another agent may run beside this one for a moment, and other plugins have their sockets here."""
    for name in (f"{SOCKET_PREFIX}live.sock", f"{SOCKET_PREFIX}dead.sock", "other.sock"):
        sockets.append(socket.socket(socket.AF_UNIX))
        sockets[-1].bind(str(tmp_path / name))
        if "live" in name:
            sockets[-1].listen()
        else:
            sockets[-1].close()
    (tmp_path / f"{SOCKET_PREFIX}file.sock").touch()
    assert sweep(tmp_path) == [tmp_path / f"{SOCKET_PREFIX}dead.sock"]
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{SOCKET_PREFIX}live.sock",
        f"{SOCKET_PREFIX}file.sock",
        "other.sock",
    }
