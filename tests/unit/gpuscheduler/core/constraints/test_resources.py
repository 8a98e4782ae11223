"""Amounts are integers, and those that kube-scheduler counts."""

import pytest

from gpuscheduler.core.constraints.resources import (
    MOST_OTHERS,
    Resources,
    free_amounts,
    milli_cpu,
    node_resources,
    pod_resources,
)

MIB = 2**20


@pytest.mark.parametrize(
    ("quantity", "milli"),
    [
        ("4", 4000),
        (4, 4000),
        ("100m", 100),
        ("0.1", 100),
        ("3920m", 3920),
        ("0.0001", 1),
        ("1500u", 2),
        ("1000001n", 2),
        ("2k", 2_000_000),
        ("1e3", 1_000_000),
        ("-1", 0),
        ("no number", 0),
        (None, 0),
        ("9" * 17, 2**63 - 1),
        ("0." + "9" * 5000, 1000),
        ("500e-3", 500),
        ("5E-1", 500),
        ("1e-4", 1),
        ("0.0005e3", 500),
        ("1e3", 1_000_000),
        (".5", 500),
        ("+500m", 500),
        (".", 0),
        ("e3", 0),
    ],
)
def test_cores_are_counted_in_thousandths_rounded_up(quantity, milli):
    assert milli_cpu(quantity) == milli


def container(name="c", restart=None, **requests):
    made = {"name": name, "resources": {"requests": requests}}
    return made | ({"restartPolicy": restart} if restart else {})


SIDECAR = {"restart": "Always"}
PODS = {
    "containers are added up": ({"containers": [container(cpu="1"), container(cpu="200m")]}, 1200, 0),
    "the largest init container counts where it is more": (
        {
            "containers": [container(cpu="1", memory="1Mi")],
            "initContainers": [container(cpu="3"), container(memory="1")],
        },
        3000,
        MIB,
    ),
    "a sidecar runs beside the containers": (
        {"containers": [container(cpu="1")], "initContainers": [container(cpu="2", **SIDECAR)]},
        3000,
        0,
    ),
    "a sidecar runs beside later init containers": (
        {
            "containers": [container(cpu="1")],
            "initContainers": [container(cpu="5"), container(cpu="2", **SIDECAR), container(cpu="4")],
        },
        6000,
        0,
    ),
    "the pod as a whole overrides CPU and memory": (
        {"containers": [container(cpu="1", memory="4Mi")], "resources": {"requests": {"cpu": "500m"}}},
        500,
        4 * MIB,
    ),
    "the overhead comes on top": (
        {
            "containers": [container(cpu="1")],
            "resources": {"requests": {"cpu": "2"}},
            "overhead": {"cpu": "250m", "memory": "1Mi"},
        },
        2250,
        MIB,
    ),
    "what is no object counts as empty": (
        {"containers": [3, {"resources": [], "name": {}}], "initContainers": "x", "overhead": [], "resources": 4},
        0,
        0,
    ),
}


@pytest.mark.parametrize(("spec", "cpu", "memory"), PODS.values(), ids=PODS.keys())
def test_a_pod_counts_as_in_kubernetes(spec, cpu, memory):
    assert pod_resources(spec, {}) == Resources(cpu, memory, pods=1)


def status(requests, allocated, key="containerStatuses"):
    return {key: [{"name": "c", "resources": {"requests": requests}, "allocatedResources": allocated}]}


@pytest.mark.parametrize(
    ("seen", "cpu"),
    [
        (status({"cpu": "2"}, {"cpu": "1"}), 2000),
        (status({"cpu": "500m"}, {"cpu": "3"}), 3000),
        (status({"cpu": "500m"}, {}), 1000),
        ({"containerStatuses": [{"name": "c", "resources": 3, "allocatedResources": 3}, 4]}, 1000),
        ({"containerStatuses": 3}, 1000),
    ],
)
def test_a_container_that_is_resized_counts_with_the_larger_amount(seen, cpu):
    assert pod_resources({"containers": [container(cpu="1")]}, seen).cpu == cpu


INFEASIBLE = {"conditions": [{"type": "PodResizePending", "reason": "Infeasible"}]}
DEFERRED = {"conditions": [{"type": "PodResizePending", "reason": "Deferred"}, 3]}


@pytest.mark.parametrize(
    ("seen", "cpu"),
    [
        (INFEASIBLE | status({"cpu": "2"}, {"cpu": "1"}), 2000),
        (INFEASIBLE | status({}, {"cpu": "1"}), 1000),
        (INFEASIBLE, 500_000),
        (DEFERRED | status({"cpu": "2"}, {"cpu": "1"}), 500_000),
        ({"conditions": 3} | status({"cpu": "2"}, {"cpu": "1"}), 500_000),
    ],
)
def test_a_resize_that_kubelet_cannot_do_counts_as_what_the_container_has(seen, cpu):
    """Otherwise a pod that asks for more than its node has would keep all other pods off."""
    assert pod_resources({"containers": [container(cpu="500")]}, seen).cpu == cpu


def test_containers_beside_one_that_cannot_be_resized_count_as_they_are():
    containers = [container(cpu="500"), container("other", cpu="3"), container("unseen", cpu="4")]
    sidecar, init = container("sidecar", cpu="5", **SIDECAR), container("init", cpu="100")
    has = {"c": "2", "other": "3", "sidecar": "5", "init": "1"}
    statuses = {
        name: {"name": name, "resources": {"requests": {"cpu": cpu}}, "allocatedResources": {"cpu": cpu}}
        for name, cpu in has.items()
    }
    seen = INFEASIBLE | {
        "containerStatuses": [statuses["c"], statuses["other"]],
        "initContainerStatuses": [statuses["sidecar"], statuses["init"]],
    }
    spec = {"containers": containers, "initContainers": [sidecar]}
    assert pod_resources(spec, seen).cpu == 14_000
    with_init = spec | {"initContainers": [sidecar, init]}
    assert pod_resources(with_init, seen).cpu == 105_000, "what an init container has is not looked at"


@pytest.mark.parametrize(
    ("seen", "cpu"),
    [
        ({}, 2000),
        ({"resources": {"requests": {"cpu": "3"}}}, 3000),
        ({"resources": {"requests": {"cpu": "1"}}, "allocatedResources": {"cpu": "4", "memory": "1Gi"}}, 4000),
        (INFEASIBLE | {"resources": {"requests": {"cpu": "1"}}, "allocatedResources": {"cpu": "1"}}, 1000),
        ({"resources": 3, "allocatedResources": [4]}, 2000),
    ],
)
def test_a_pod_that_is_resized_as_a_whole_counts_with_the_larger_amount(seen, cpu):
    spec = {"containers": [container(cpu="1", memory="1Mi")], "resources": {"requests": {"cpu": "2"}}}
    assert pod_resources(spec, seen) == Resources(cpu, MIB, pods=1)


def test_other_resources_are_kept_by_name_and_few_of_them():
    requests = {"ephemeral-storage": "1Ki", "a.io/x": "2", "zero.io/x": "0"}
    assert pod_resources({"containers": [container(**requests)]}, {}).others == (
        ("a.io/x", 2),
        ("ephemeral-storage", 1024),
    )
    many = {f"x.io/{n:04}": "1" for n in range(2000)}
    assert len(pod_resources({"containers": [container(**many)]}, {}).others) == MOST_OTHERS


NODE = {"cpu": "4", "memory": "8Mi", "pods": "10", "rdma/hca": "2", "aliyun.com/gpu-mem": "80"}


@pytest.mark.parametrize(
    ("wanted", "used", "times"),
    [
        (Resources(cpu=100), Resources(), 40),
        (Resources(cpu=100), Resources(cpu=1), 39),
        (Resources(memory=3 * MIB), Resources(), 2),
        (Resources(pods=1), Resources(pods=3), 7),
        (Resources(pods=1), Resources(pods=30), 0),
        (Resources(), Resources(cpu=9999), 99),
        (Resources(others=(("rdma/hca", 1),)), Resources(), 2),
        (Resources(others=(("rdma/hca", 1),)), Resources(others=(("rdma/hca", 1),)), 1),
        (Resources(others=(("example.com/absent", 1),)), Resources(), 0),
        (Resources(others=(("aliyun.com/gpu-mem", 30),)), Resources(), 2),
        (Resources(others=(("aliyun.com/gpu", 1),)), Resources(), 99),
    ],
)
def test_how_often_a_node_has_it_free(wanted, used, times):
    assert wanted.times_in(node_resources(NODE), used, 99) == times


@pytest.mark.parametrize("allocatable", [{}, {"cpu": "0", "memory": "0", "pods": "0"}], ids=["absent", "zero"])
@pytest.mark.parametrize("wanted", [{"cpu": 1}, {"memory": 1}, {"pods": 1}], ids=str)
def test_a_node_without_an_amount_and_one_with_zero_have_none_as_for_kube_scheduler(allocatable, wanted):
    there = node_resources(allocatable)
    (name,) = wanted
    assert Resources(**wanted).times_in(there, Resources(), 5) == 0
    assert Resources(**wanted).short_in(there, Resources()) == name
    assert free_amounts(there, Resources(), [name]) == (0,)
    assert Resources().times_in(there, Resources(), 5) == 5, "a pod that asks for nothing fits"


def test_sums_lose_nothing():
    first = Resources(1, 2, 3, (("a", 1), ("b", 2)))
    second = Resources(10, 20, 30, (("b", 3), ("c", 4)))
    assert first + second == Resources(11, 22, 33, (("a", 1), ("b", 5), ("c", 4)))
    assert first + second - second == first
    assert first + second - first == second
