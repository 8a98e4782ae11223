"""The program: its flags, its start and its end."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from gpuscheduler.cli import run


@contextmanager
def process(cluster, *flags):
    kubeconfig = cluster.api.write_kubeconfig(cluster.directory / "kubeconfig")
    command = [sys.executable, "-m", "gpuscheduler", "run", "--kubeconfig", str(kubeconfig), "--listen", "127.0.0.1:0"]
    command += ["--http-address", "off", "--lease", "off", "--log-format", "json", *flags]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as running:
        yield running
        running.kill()


def events(running):
    """Log lines by event, as they come."""
    return (json.loads(line) for line in running.stderr)


def test_a_process_becomes_ready_and_ends_with_sigterm(cluster):
    with process(cluster) as running:
        assert next(one for one in events(running) if one["event"] == "Ready")["nodes"] == 0
        running.send_signal(signal.SIGTERM)
        assert running.wait() == 0


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--lease", "gpu-scheduler"], "--lease: 'gpu-scheduler' is not NAMESPACE/NAME or off"),
        (["--listen", "off"], "--listen: 'off' is not HOST:PORT or :PORT"),
    ],
)
def test_mistakes_in_settings_are_explained(flags, error, capsys):
    assert run(["run", *flags]) == 2
    assert error in capsys.readouterr().err


def test_an_address_in_use_is_explained(cluster):
    scheduler = cluster.start()
    host, port = scheduler.app.address
    with process(cluster, "--listen", f"{host}:{port}") as running:
        assert f"gpuscheduler: cannot listen on --listen {host}:{port}: Address already in use" in running.stderr.read()
        assert running.wait() == 2
