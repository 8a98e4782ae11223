"""The stand-in control daemon does what NVIDIA documents of the real one."""

from collections.abc import Iterator

import pytest

from standin.mps.control import NO_DAEMON
from standin.mps.host import MpsHost


@pytest.fixture
def host() -> Iterator[MpsHost]:
    with MpsHost() as host:
        yield host


def test_without_a_daemon_a_command_says_so_and_fails(host):
    done = host.run(host.own, asked="get_server_list\n")
    assert (done.returncode, done.stdout.strip()) == (1, NO_DAEMON)


def test_a_daemon_in_the_background_answers(host):
    assert host.run(host.own, "-d").returncode == 0
    done = host.run(host.own, asked="get_default_active_thread_percentage\n")
    assert (done.returncode, done.stdout) == (0, "100.0\n")
    assert host.pid(host.own)
    assert "Starting control daemon" in host.log()


def test_several_commands_in_one_call(host):
    host.run(host.own, "-d")
    asked = "set_default_active_thread_percentage 30\nget_default_active_thread_percentage\n"
    assert host.run(host.own, asked=asked).stdout.split() == ["30.0", "30.0"]


def test_only_one_daemon_a_directory(host):
    host.run(host.own, "-d")
    second = host.run(host.own, "-d")
    assert second.returncode == 1
    assert "already running" in second.stdout
    assert host.run(host.ack, "-d").returncode == 0, "another directory is another daemon"


def test_a_killed_daemon_leaves_files_and_another_can_start(host):
    host.run(host.own, "-d")
    first = host.pid(host.own)
    host.kill(host.own)
    assert host.pid(host.own) == first
    while not (done := host.run(host.own, asked="ps\n")).returncode:
        pass
    assert NO_DAEMON in done.stdout
    assert host.run(host.own, "-d").returncode == 0
    assert host.run(host.own, asked="ps\n").returncode == 0
    assert host.pid(host.own) != first


def test_servers_and_clients(host):
    host.run(host.own, "-d")
    assert host.run(host.own, asked="get_server_list\n").stdout == ""
    host.steer(host.own, clients=[4711, 4712])
    server = host.run(host.own, asked="get_server_list\n").stdout.strip()
    assert server.isdigit()
    assert host.run(host.own, asked=f"get_client_list {server}\n").stdout.split() == ["4711", "4712"]
    assert host.run(host.own, asked=f"get_server_status {server}\n").stdout.strip() == "ACTIVE"
    rows = host.run(host.own, asked="ps\n").stdout.splitlines()
    assert [row.split()[0] for row in rows] == ["PID", "4711", "4712"]


def test_a_server_can_be_started_by_hand(host):
    host.run(host.own, "-d")
    assert host.run(host.own, asked="start_server -uid 1000\nget_server_list\n").stdout.strip().isdigit()


def test_limits_are_kept_until_the_daemon_ends(host):
    host.run(host.own, "-d")
    get = "get_default_device_pinned_mem_limit 0\n"
    host.run(host.own, asked="set_default_device_pinned_mem_limit 0 4096M\n")
    assert host.run(host.own, asked=get).stdout.strip() == "4096M"
    host.run(host.own, asked="quit\n")
    host.run(host.own, "-d")
    assert host.run(host.own, asked=get).stdout.strip() == "0M"


@pytest.mark.parametrize("command", ["set_default_device_pinned_mem_limit 0 4096", "nonsense", "get_client_list"])
def test_what_is_no_command_is_reported(host, command):
    host.run(host.own, "-d")
    assert "Unrecognized command" in host.run(host.own, asked=f"{command}\n").stdout


def test_quit_with_a_time_does_not_wait_for_clients(host):
    host.run(host.own, "-d")
    host.steer(host.own, clients=[4711])
    host.run(host.own, asked="quit -t 0\n")
    assert host.pid(host.own) is None


@pytest.mark.parametrize("arguments", [["-x"], ["-d", "-f"], ["-M"]])
def test_options_that_do_not_fit_are_refused(host, arguments):
    done = host.run(host.own, *arguments)
    assert done.returncode == 1
    assert "usage" in done.stdout
