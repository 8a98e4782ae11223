"""A machine of its own for a command: what it changes, starts and listens at is seen by it alone."""

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

APART = Path(__file__).with_name("apart.py")
PROBE = f"probe-{uuid.uuid4()}"


def apart(script: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, str(APART), "/bin/sh", "-c", script)
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_is_the_commands(code: int) -> None:
    assert apart(f"exit {code}").returncode == code


@pytest.mark.parametrize("folder", ["/var/lib/kubelet", "/var/log", "/run", "/dev"])
def test_folders_that_kubelet_writes_are_its_own(folder: str) -> None:
    seen = Path(folder, PROBE)
    seen.parent.mkdir(parents=True, exist_ok=True)
    seen.touch()
    try:
        done = apart(f"ls {folder}; touch {folder}/{PROBE}-inside")
        assert (done.returncode, done.stderr) == (0, "")
        assert PROBE not in done.stdout
        assert not Path(f"{seen}-inside").exists()
    finally:
        seen.unlink()


def test_other_files_are_the_machines() -> None:
    assert apart("cat /etc/hostname").stdout == Path("/etc/hostname").read_text()


def test_a_port_of_the_machine_is_free_and_leads_nowhere() -> None:
    code = "import socket; socket.create_server(('127.96.0.1', 443)); print('listens')"
    assert apart(f'{sys.executable} -c "{code}"').stdout == "listens\n"


def test_a_name_that_nobody_knows_is_refused_by_the_own_machine() -> None:
    """A server that never answers would keep kubelet waiting at each report of its node."""
    code = "import socket; socket.getaddrinfo('gpu-node', 443)"
    servers = apart(f'test ! -e /etc/resolv.conf || cat /etc/resolv.conf; {sys.executable} -c "{code}"')
    assert servers.stdout in {"", "nameserver 127.0.0.1\n"}
    assert "gaierror" in servers.stderr


def test_what_the_command_leaves_ends_with_it() -> None:
    assert apart(f"setsid sh -c 'sleep 1000; : {PROBE}' & exit 0").returncode == 0
    assert not [command for command in commands() if PROBE in command]


def commands() -> Iterator[str]:
    """Of all processes of this machine."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            yield (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue  # it has just ended
