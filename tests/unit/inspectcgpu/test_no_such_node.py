"""Names of nodes that do not exist: what was probably meant."""

import pytest

from inspectcgpu.cli import run
from standin.api.server import ApiServer
from tests.unit.gpuscheduler.core.explain.cluster_objects import node, share_gpus


@pytest.fixture
def server():
    with ApiServer("n0") as standin:
        yield standin


@pytest.fixture
def call(capsys, server, tmp_path):
    config = str(server.write_kubeconfig(tmp_path / "config"))

    def called(*arguments):
        code = run(["--kubeconfig", config, *arguments], {})
        return code, capsys.readouterr().err

    return called


def add_node(server, name):
    server.objects.create("nodes", "", node(name, "share", gpus=share_gpus(80)))


@pytest.mark.parametrize("arguments", [["gpu-l"], ["--waste", "gpu-l"], ["status", "gpu-l"], ["--health", "gpu-l"]])
def test_a_mistyped_name_has_the_one_that_was_meant(call, server, arguments):
    add_node(server, "gpu-1")
    assert call(*arguments) == (1, "kubectl-inspect-cgpu: there is no node gpu-l; did you mean gpu-1?\n")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("GPU-1", "did you mean gpu-1?"),
        ("statsu", "did you mean status?"),
        ("describe", "the only command is status, as in kubectl inspect cgpu status NODE"),
        ("get", "the only command is status, as in kubectl inspect cgpu status NODE"),
    ],
)
def test_words_that_are_no_nodes(call, server, word, expected):
    add_node(server, "gpu-1")
    assert call(word) == (1, f"kubectl-inspect-cgpu: there is no node {word}; {expected}\n")


def test_a_name_that_is_like_no_other_and_a_user_who_may_not_list_nodes(call, server):
    add_node(server, "gpu-1")
    assert call("other")[1] == "kubectl-inspect-cgpu: there is no node other\n"
    server.deny("list", "nodes")
    assert call("gpu-l")[1] == "kubectl-inspect-cgpu: there is no node gpu-l\n"


@pytest.mark.parametrize("flags", [[], ["--health"], ["--waste"]])
def test_a_cluster_without_gpu_nodes_is_said_to_be_one(call, flags):
    code, err = call(*flags)
    assert code == 0
    assert err.startswith("no GPU nodes: no node has aliyun.com/gpu-mem")
