"""Ports for servers of tests: each is one caller's, below those of outgoing connections."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from standin import ports

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def few(monkeypatch: pytest.MonkeyPatch, folder: Path, count: int) -> range:
    """Leave so many ports to choose from, which no other test uses."""
    first = 14_000
    monkeypatch.setattr(ports, "_FIRST", first)
    monkeypatch.setattr(ports, "_BEHIND_LAST", first + count)
    monkeypatch.setattr(ports, "_LOCKS", folder)
    return range(first, first + count)


def test_no_port_is_given_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wanted = few(monkeypatch, tmp_path, 20)
    assert sorted(ports.free_port() for _ in wanted) == [*wanted]


def test_a_port_with_a_listener_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, second = few(monkeypatch, tmp_path, 2)
    with socket.create_server(("127.0.0.1", first)):
        assert ports.free_port() == second


def test_another_process_gets_other_ports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, second = few(monkeypatch, tmp_path, 2)
    mine = ports.free_port()
    taken = f"import sys; from pathlib import Path; from standin import ports; ports._LOCKS = Path({str(tmp_path)!r})"
    code = f"{taken}; ports._FIRST, ports._BEHIND_LAST = {first}, {second + 1}; print(ports.free_port())"
    others = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert {mine, int(others)} == {first, second}
    # It has ended, and its port is free again.
    assert ports.free_port() == int(others)


@pytest.mark.skipif(not EPHEMERAL.exists(), reason="only Linux says which ports it takes itself")
def test_the_kernel_takes_none_of_them_for_outgoing_connections() -> None:
    lowest = int(EPHEMERAL.read_text().split()[0])
    assert ports.free_port() < lowest
