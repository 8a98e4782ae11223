"""Which pods hold a GPU through MPS, as the node's state shows them."""

from gpuagent.domain.sharing.memory_shares import PodShares
from gpuagent.isolation.interface import Need
from gpuagent.isolation.mps.choice import pods_on
from tests.unit.isolation.mps_under_test import gpu

SHARES = PodShares({"GPU-0a": 1 << 30}, {"main": {"GPU-0a": 1 << 30}})
OTHER = PodShares({"GPU-1a": 1 << 30}, {"main": {"GPU-1a": 1 << 30}})
NEED = Need(gpus=(gpu(0), gpu(1)), held=frozenset({"GPU-0a"}), pods={"a": SHARES, "b": SHARES, "c": OTHER})


def test_the_pods_of_a_gpu_are_those_with_a_share_of_it():
    named = Need(gpus=NEED.gpus, held=NEED.held, pods=NEED.pods, pod_names={"a": "ml/a", "b": "ml/b", "c": "ml/c"})
    pods = pods_on("GPU-0a", named)
    assert (pods.gpu, pods.holds, pods.names) == ("GPU 0", True, {"a": "ml/a", "b": "ml/b"})
    assert not pods_on("GPU-1a", named).holds


def test_pods_that_have_ended_are_left_out():
    named = Need(gpus=NEED.gpus, pods=NEED.pods, pod_names={"b": "ml/b"}, ending={"b": 7.0, "c": 8.0})
    pods = pods_on("GPU-0a", named)
    assert (pods.names, pods.ending) == ({"b": "ml/b"}, {"b": 7.0})


def test_without_the_api_server_pods_are_named_by_uid():
    assert pods_on("GPU-0a", NEED).names == {"a": "a", "b": "b"}
