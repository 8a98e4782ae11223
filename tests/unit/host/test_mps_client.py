"""The control client: what it asks for, and how it says that something is wrong."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpuagent.host.mps_client import (
    KNOWN_DIRECTORIES,
    RESTARTED_MARK,
    Control,
    HangsError,
    MpsError,
    NoDaemonError,
    ProtocolError,
    daemon_pid,
    find_program,
    is_started_again,
    too_long,
)
from gpuisolation.host.mps_servers import PIPE_DIRS
from standin.mps.cuda import CudaClient
from standin.mps.host import MpsHost
from standin.waiting import PATIENCE_S


@pytest.fixture
def host() -> Iterator[MpsHost]:
    with MpsHost() as host:
        yield host


@pytest.fixture
def control(host) -> Control:
    host.run(host.own, "-d")
    return Control(host.control, host.own, deadline_s=PATIENCE_S)


def script(host: MpsHost, body: str) -> Path:
    path = host.root / "other"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_a_round_trip(control):
    control.alive()


def test_nobody_there(host):
    with pytest.raises(NoDaemonError, match=f"no MPS control daemon runs at {host.own}"):
        Control(host.control, host.own, deadline_s=PATIENCE_S).alive()


def test_a_daemon_that_hangs_is_not_waited_for(host, control):
    host.steer(host.own, hang=True)
    with pytest.raises(HangsError, match=r"did not answer 'get_server_list' within 0\.3 s"):
        control.ask("get_server_list", deadline_s=0.3)


def test_the_program_that_hangs_is_killed(host):
    with pytest.raises(HangsError):
        Control(script(host, f"exec tail -f {host.root / 'other'}"), host.own).ask("ps", deadline_s=0.5)
    assert not [command for command in commands() if os.fsencode(host.root) in command]


def commands() -> set[bytes]:
    """The command lines of every process of this machine."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # a process of another test has ended meanwhile
            found.add(path.read_bytes())
    return found


def test_a_program_that_cannot_be_run(host):
    with pytest.raises(MpsError, match="missing cannot be run: No such file or directory$"):
        Control(host.root / "missing", host.own).alive()


def test_an_error_of_the_program_is_passed_on(host):
    with pytest.raises(MpsError, match=r"'ps' at .* failed \(7\): no luck"):
        Control(script(host, "echo no luck; exit 7"), host.own).ask("ps")


def test_an_answer_that_is_no_percentage_is_no_life(host):
    with pytest.raises(MpsError, match="was answered with 'hello', not a percentage"):
        Control(script(host, "cat >/dev/null; echo hello"), host.own).alive()


def test_one_odd_answer_is_no_death(host):
    """As a real daemon gave one beside many other commands, and a percentage a moment later."""
    asked = host.root / "asked"
    first = f"if [ ! -e {asked} ]; then touch {asked}; exit 0; fi"
    Control(script(host, f"cat >/dev/null; {first}; echo 100.0"), host.own).alive()


@pytest.mark.parametrize("later", ["100.0", "Cannot find MPS control daemon process"])
def test_a_program_that_ignores_arguments_is_not_of_a_later_protocol(host, later):
    """It obeys its standard input, whatever its arguments are."""
    answer = f'if [ "$1" = server ]; then echo "{later}"; else echo; fi'
    with pytest.raises(MpsError, match="was answered with ''") as raised:
        Control(script(host, f"cat >/dev/null; {answer}"), host.own).alive()
    assert not isinstance(raised.value, ProtocolError)


def test_a_daemon_of_a_later_protocol_is_named(host, control):
    """From driver 615 on, a daemon can speak protocol 3, whatever the program is called with."""
    host.steer(host.own, protocol=3)
    with pytest.raises(ProtocolError, match="speaks protocol 3 and is not adopted"):
        control.alive()
    host.steer(host.own)
    control.alive()


def test_the_default_directory_of_root_is_known():
    """From driver 615 on."""
    assert Path("/run/nvidia-mps") in KNOWN_DIRECTORIES
    assert "/run/nvidia-mps" in PIPE_DIRS


def test_what_steers_cuda_here_does_not_reach_the_program(host, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    text = Control(script(host, "cat >/dev/null; env | grep ^CUDA_"), host.own).ask("ps")
    assert text == f"CUDA_MPS_PIPE_DIRECTORY={host.own}"


def test_servers_and_clients(host, control):
    assert control.servers() == ()
    assert control.clients() == ()
    host.steer(host.own, clients=[4711, 4712])
    assert len(control.servers()) == 1
    assert control.clients() == (4711, 4712)


def test_a_client_is_ended_by_the_daemon(host, control):
    client = CudaClient(host.own, pid=4711, patience_s=PATIENCE_S)
    client.work()
    (server,) = control.servers()
    assert control.clients_of(server) == (4711,)
    assert control.status(server) == "ACTIVE"
    control.terminate(server, 4711, deadline_s=PATIENCE_S)
    client.wait()
    client.end()
    later = CudaClient(host.own, pid=4712, patience_s=PATIENCE_S)
    later.end()
    assert later.answer == "served"


def test_a_client_without_the_daemon_sees_none(host):
    client = CudaClient(host.own, patience_s=PATIENCE_S)
    client.end()
    assert client.answer == "error 805"


def test_only_a_mark_of_roots_says_that_a_daemon_is_started_again(tmp_path, monkeypatch):
    assert not is_started_again(tmp_path)
    mark = tmp_path / RESTARTED_MARK
    mark.symlink_to(tmp_path)
    assert not is_started_again(tmp_path), "a client may have left it"
    mark.unlink()
    mark.write_text("")
    assert is_started_again(tmp_path)
    owner = mark.stat().st_uid
    monkeypatch.setattr("gpuagent.host.mps_client.foreign_owner", lambda *_: f"it belongs to {owner}")
    assert not is_started_again(tmp_path)


def test_the_state_of_a_server_is_the_daemons_word(host, control):
    host.steer(host.own, clients=[4711], status="FAULT")
    (server,) = control.servers()
    assert control.status(server) == "FAULT"


def test_quit(host, control):
    control.quit()
    with pytest.raises(NoDaemonError):
        control.alive()
    assert host.log().endswith("Exit\n")


def test_quit_waits_for_clients_unless_a_time_is_given(host, control):
    host.steer(host.own, clients=[4711])
    with pytest.raises(HangsError):
        control.quit(deadline_s=0.3)
    control.quit(force_after_s=0)
    with pytest.raises(NoDaemonError):
        control.alive()


def test_the_daemons_pid(host, control):
    assert daemon_pid(host.own) == host.pid(host.own)


@pytest.mark.parametrize(
    "text", [str(os.getpid()), "99999999", "no number", ""], ids=["ours", "nobody", "text", "empty"]
)
def test_a_pid_file_that_is_not_the_daemons_is_not_believed(tmp_path, text):
    (tmp_path / "nvidia-cuda-mps-control.pid").write_text(text)
    assert daemon_pid(tmp_path) is None


def test_programs_are_found_by_path_by_name_and_in_the_drivers_folders(host, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_program(str(host.control)) == host.control
    assert find_program("nvidia-cuda-mps-control", ()) is None
    assert find_program("nvidia-cuda-mps-control", ("/nowhere", str(host.control.parent))) == host.control
    monkeypatch.setenv("PATH", str(host.control.parent))
    assert find_program("nvidia-cuda-mps-control", ()) == host.control


def test_directories_that_are_too_long_for_the_sockets():
    assert not too_long(Path("/var/run/gpuagent/mps"))
    assert too_long(Path("/" + "x" * 89))
    assert not too_long(Path("/" + "x" * 87))
