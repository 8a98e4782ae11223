"""The stand-in control daemon does what NVIDIA documents of the real one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from standin.mps.client import LIMITS, effective_caps, server_limit, server_percentage
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
    assert host.run(host.own, asked=get).stdout.strip() == "4G"
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


# -- limits of servers, as measured on an H200 -------------------------------------------------------------------------


@pytest.fixture
def pipes(host) -> Path:
    """Of a daemon with one server, which began without limits."""
    host.run(host.own, "-d")
    host.run(host.own, asked="start_server -uid 0\n")
    return host.own


def set_memory(host: MpsHost, amount: str) -> str:
    server = host.run(host.own, asked="get_server_list\n").stdout.split()[0]
    host.run(host.own, asked=f"set_device_pinned_mem_limit {server} 0 {amount}\n")
    return server


def test_a_default_is_for_servers_that_begin_later(host, pipes):
    host.run(pipes, asked="set_default_device_pinned_mem_limit 0 5G\n")
    assert server_limit(pipes) is None
    host.run(pipes, asked="start_server -uid 1000\n")
    _, later = host.run(pipes, asked="get_server_list\n").stdout.split()
    assert host.run(pipes, asked=f"get_device_pinned_mem_limit {later} 0\n").stdout == "5G\n"


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (None, 6144),
        ("", 6144),
        ("0=60G", 6144),
        ("0=2G", 2048),
        ("GPU-0a=2G,0=60G", 2048),
        ("0=60G,GPU-0a=2G", 6144),
        ("9=1G", None),
        ("0=2G,9=1G", None),
    ],
)
def test_a_client_goes_below_the_limit_of_its_server_and_not_above(host, pipes, limit, expected):
    set_memory(host, "6G")
    env = {} if limit is None else {LIMITS: limit}
    of_server = server_limit(pipes)
    assert of_server == 6144
    assert effective_caps(env, ["GPU-0a"], {"GPU-0a": of_server}) == {"GPU-0a": expected}


def test_a_server_keeps_its_limit_and_can_get_another(host, pipes):
    server = set_memory(host, "6G")
    set_memory(host, "3G")
    assert host.run(pipes, asked=f"get_device_pinned_mem_limit {server} 0\n").stdout == "3G\n"
    assert host.run(pipes, asked="get_default_device_pinned_mem_limit 0\n").stdout == "0M\n"


def test_a_server_has_a_percentage_of_its_own(host, pipes):
    server = set_memory(host, "6G")
    assert host.run(pipes, asked=f"set_active_thread_percentage {server} 40\n").stdout == "40.0\n"
    assert server_percentage(pipes) == 40
    assert host.run(pipes, asked="get_default_active_thread_percentage\n").stdout == "100.0\n"


@pytest.mark.parametrize(("odd", "said"), [("unknown", "Unrecognized command\n"), ("stuck", "5G\n")])
def test_a_daemon_can_be_steered_not_to_take_limits(host, pipes, odd, said):
    host.run(pipes, asked="set_default_device_pinned_mem_limit 0 5G\n")
    host.steer(pipes, limits=odd)
    asked = "set_default_device_pinned_mem_limit 0 7G\nget_default_device_pinned_mem_limit 0\n"
    assert host.run(pipes, asked=asked).stdout.endswith(said)


def test_a_server_that_is_not_there_has_no_limit(host, pipes):
    assert host.run(pipes, asked="get_device_pinned_mem_limit 1 0\n").stdout == "Server not found\n"
