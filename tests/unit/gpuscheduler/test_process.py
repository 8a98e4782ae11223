"""The program: its flags, its start and its end."""

import http.client
import json
import os
import signal
import subprocess
import sys
from contextlib import closing, contextmanager

import pytest

from gpuscheduler.cli import run
from standin.waiting import PATIENCE_S
from tests.unit.gpuscheduler.running_scheduler import request, until


@contextmanager
def process(cluster, *flags):
    kubeconfig = cluster.api.write_kubeconfig(cluster.directory / "kubeconfig")
    command = [sys.executable, "-m", "gpuscheduler", "run", "--kubeconfig", str(kubeconfig), "--listen", "127.0.0.1:0"]
    command += ["--http-address", "127.0.0.1:0", "--lease", "off", "--log-format", "json", *flags]
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


def test_sigterm_answers_the_calls_in_progress(cluster):
    cluster.whole_node("n1", gpus=4)
    pods = cluster.job("j", 2, gpus=2)
    with process(cluster) as running:
        lines = events(running)
        listening = next(one for one in lines if one["event"] == "Listening")
        address, pages = listening["address"], listening["pages"]
        assert next(one for one in lines if one["event"] == "Ready")["pods"] == 2
        answers = []
        for pod in (*pods, pods[0]):
            with closing(call(address, "/filter", {"Pod": pod, "NodeNames": ["n1"]})) as connection:
                answers.append(json.loads(connection.getresponse().read())["NodeNames"])
        assert answers == [[], ["n1"], ["n1"]], "a job is planned when kube-scheduler has asked about all of its pods"
        meta = pods[0]["metadata"]
        body = {"PodName": meta["name"], "PodNamespace": "default", "PodUID": meta["uid"], "Node": "n1"}
        with closing(call(address, "/bind", body)) as waiting:
            until(lambda: b'"reserved":["default/j-0"]' in page(pages, "/usage"))
            running.send_signal(signal.SIGTERM)
            assert json.loads(waiting.getresponse().read())["Error"] == "the scheduler's extender stops"
        assert running.wait() == 0


def test_pages_and_calls_have_an_address_each(cluster):
    cluster.share_node("n1")
    with process(cluster) as running:
        lines = events(running)
        listening = next(one for one in lines if one["event"] == "Listening")
        next(one for one in lines if one["event"] == "Ready")
        for path in ("/", "/healthz", "/readyz", "/metrics", "/usage"):
            assert status(listening["pages"], "GET", path) == 200
            assert status(listening["address"], "GET", path) == 404
        assert status(listening["pages"], "POST", "/filter") == 405
        assert status(listening["address"], "POST", "/filter") == 400


def test_without_pages_calls_are_answered(cluster):
    with process(cluster, "--http-address", "off") as running:
        listening = next(one for one in events(running) if one["event"] == "Listening")
        assert listening["pages"] == "off"
        assert status(listening["address"], "POST", "/filter") == 400


def call(address, path, body):
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    connection.request("POST", path, json.dumps(body))
    return connection


def status(address, method, path):
    return request(address, method, path, "{}" if method == "POST" else None)[0]


def page(address, path):
    with closing(http.client.HTTPConnection(address, timeout=PATIENCE_S)) as connection:
        connection.request("GET", path)
        return connection.getresponse().read()


@pytest.mark.usefixtures("own_logging")
@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--scheduler-name", "mine,Gpu Scheduler"], "--scheduler-name: 'Gpu Scheduler' is no name of a scheduler"),
        (["--lease", "gpu-scheduler"], "--lease: 'gpu-scheduler' is not NAMESPACE/NAME or off"),
        (["--listen", "off"], "--listen: 'off' is not HOST:PORT or :PORT"),
    ],
)
def test_mistakes_in_settings_are_explained(flags, error, capsys):
    assert run(["run", *flags]) == 2
    assert error in capsys.readouterr().err


def test_an_address_in_use_is_explained(cluster):
    address = cluster.start().app.address
    with process(cluster, "--listen", address) as running:
        assert f"gpuscheduler: cannot listen on --listen {address}: Address already in use" in running.stderr.read()
        assert running.wait() == 2
