"""Completion on TAB, by kubectl's protocol for plugins: candidates, then a number for the shell."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from inspectcgpu.cli import run
from inspectcgpu.commands.complete import FILES, NO_FILES, NO_SPACE
from inspectcgpu.flags import ALL, HEALTH_COLUMNS, NODE_COLUMNS, WASTE_COLUMNS
from inspectcgpu.read.workload import KINDS
from tests.unit.inspectcgpu.sample_cluster import add_node

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "kubectl" / "kubectl_complete-inspect-cgpu"


@pytest.fixture
def complete(capsys, config):
    """Completes the last of the words; returns the candidates, without descriptions, and the number."""

    def completed(*words, environ=None):
        assert run(["__complete", *words], environ or {"KUBECONFIG": config}) == 0
        *lines, last = capsys.readouterr().out.splitlines()
        return [line.partition("\t")[0] for line in lines], int(last.removeprefix(":"))

    return completed


@pytest.fixture
def nodes(server):
    for name in ("gpu-1", "gpu-2"):
        add_node(server, name, gpus=1, mem=15)
    server.objects.create("nodes", "", {"metadata": {"name": "cpu-1"}})


def test_names_are_the_command_and_the_gpu_nodes(nodes, complete):
    assert complete("") == (["gpu-1", "gpu-2", "status"], NO_FILES)
    assert complete("gpu-") == (["gpu-1", "gpu-2"], NO_FILES)
    assert complete("gpu-1", "") == (["gpu-2"], NO_FILES)
    assert complete("-d", "--health", "x") == ([], NO_FILES)


def test_status_takes_one_node(nodes, complete):
    assert complete("status", "") == (["gpu-1", "gpu-2"], NO_FILES)
    assert complete("status", "-o", "json", "gpu-2", "") == ([], NO_FILES)


def test_why_takes_a_pod_that_waits(server, complete):
    server.create_pod("chat", node="", namespace="team-a")
    server.create_pod("runs", namespace="team-a")
    server.patch_pod("runs", {"status": {"phase": "Running"}}, namespace="team-a", subresource="status")
    kinds = sorted(f"{kind.kind.lower()}/" for kind in KINDS)
    assert complete("-n", "team-a", "--why", "") == (["chat", *kinds], NO_FILES)
    assert complete("-n", "team-a", "--why=c") == (["chat"], NO_FILES)
    assert complete("-n", "team-a", "--why", "pod/") == (["pod/chat"], NO_FILES)
    assert complete("--why", "chat", "") == ([], NO_FILES)
    server.deny("list", "pods")
    assert complete("--why", "") == (kinds, NO_FILES | NO_SPACE)


def test_why_takes_a_workload_as_kubectl_logs_does(server, complete):
    for name, namespace in (("chat", "team-a"), ("train", "team-a"), ("other", "team-b")):
        server.objects.create("deployments", namespace, {"metadata": {"name": name, "namespace": namespace}})
    assert complete("--why", "dep") == (["deployment/"], NO_FILES | NO_SPACE)
    assert complete("-n=team-a", "--why", "deployment/") == (["deployment/chat", "deployment/train"], NO_FILES)
    assert complete("-n", "team-a", "--why=deploy/c") == (["deploy/chat"], NO_FILES)
    assert complete("-n", "team-a", "--why", "deployments.apps/t") == (["deployments.apps/train"], NO_FILES)
    assert complete("-n", "team-a", "--why", "service/") == ([], NO_FILES)


def test_nodes_may_have_their_kind(nodes, complete):
    assert complete("node/") == (["node/gpu-1", "node/gpu-2"], NO_FILES)
    assert complete("no/gpu-1", "node/g") == (["node/gpu-2"], NO_FILES)
    assert complete("status", "node/gpu-2") == (["node/gpu-2"], NO_FILES)
    assert complete("pod/") == ([], NO_FILES)


@pytest.mark.parametrize(
    ("words", "columns"),
    [([], NODE_COLUMNS), (["-d"], NODE_COLUMNS), (["--health"], HEALTH_COLUMNS), (["--waste"], WASTE_COLUMNS)],
)
def test_columns_are_those_of_the_command(complete, words, columns):
    assert complete(*words, "--sort-by", "") == (sorted(columns), NO_FILES)
    assert complete(*words, "--sort-by=") == (sorted(columns), NO_FILES)


def test_output_formats_are_those_of_the_command(complete):
    assert complete("--waste", "-o", "") == (["json", "table", "yaml"], NO_FILES)
    assert complete("--health", "-o=n") == (["name"], NO_FILES)


def test_flags_have_descriptions(capsys):
    assert run(["__complete", "--"], {}) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert last == f":{NO_FILES}"
    assert "--health\tshow what is wrong on which node, and nothing else" in lines
    assert len(lines) == len(ALL)
    assert all(line.count("\t") == 1 for line in lines)


def test_values_of_flags(server, complete, tmp_path):
    assert complete("-o", "") == (["brief", "json", "name", "table", "wide", "yaml"], NO_FILES)
    assert complete("-o", "w") == (["wide"], NO_FILES)
    assert complete("--output=j") == (["json"], NO_FILES)
    assert complete("--context", "") == (["standin"], NO_FILES)
    assert complete("--user", "s") == (["standin"], NO_FILES)
    assert complete("--kubeconfig", "") == ([], FILES)
    assert complete("--token", "") == ([], NO_FILES)
    server.objects.create("namespaces", "", {"metadata": {"name": "team-a"}})
    for words in (["-n", "t"], ["--namespace=t"], ["-n=t"], ["--agent-namespace=t"]):
        assert complete(*words) == (["team-a"], NO_FILES)


def test_the_flags_on_the_line_say_which_cluster(server, nodes, config, complete, tmp_path):
    assert complete("--kubeconfig", config, "gpu-", environ={"HOME": str(tmp_path)}) == (["gpu-1", "gpu-2"], NO_FILES)


def test_without_an_answer_there_are_no_candidates(server, complete, tmp_path):
    nowhere = {"HOME": str(tmp_path)}
    assert complete("g", environ=nowhere) == ([], NO_FILES)
    assert complete("--nonsense", "g") == ([], NO_FILES)
    server.deny("list", "nodes")
    assert complete("g") == ([], NO_FILES)
    server.stop()
    assert complete("g") == ([], NO_FILES)
    server.start()


@pytest.fixture
def path(tmp_path):
    """A PATH with the plugin and its completion, as the install lines leave them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    shutil.copy(SCRIPT, folder)
    plugin = folder / "kubectl-inspect-cgpu"
    python_path = f"{ROOT}:{ROOT / 'kubectl'}:{ROOT / 'scheduler'}"
    plugin.write_text(f'#!/bin/sh\nPYTHONPATH={python_path} exec {sys.executable} -m inspectcgpu "$@"\n')
    plugin.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_the_program_that_kubectl_runs_completes(nodes, config, path, tmp_path):
    environ = {**os.environ, "PATH": path, "KUBECONFIG": config}
    done = subprocess.run([SCRIPT.name, "status", "gpu-"], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == f"gpu-1\ngpu-2\n:{NO_FILES}\n"
    # Through a link of another name, as beside krew's link.
    link = tmp_path / "kubectl_complete-inspect_cgpu"
    link.symlink_to(tmp_path / "bin" / SCRIPT.name)
    done = subprocess.run([link, "gpu-2"], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == f"gpu-2\n:{NO_FILES}\n"


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl in PATH")
def test_kubectl_itself_finds_and_reads_it(nodes, config, path):
    environ = {**os.environ, "PATH": path, "KUBECONFIG": config}
    for words, expected in (((), ["gpu-1", "gpu-2", "status"]), (("status",), ["gpu-1", "gpu-2"])):
        command = ["kubectl", "__complete", "inspect", "cgpu", *words, ""]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        *lines, last = done.stdout.splitlines()
        assert [line.partition("\t")[0] for line in lines] == expected
        assert last == f":{NO_FILES}"
