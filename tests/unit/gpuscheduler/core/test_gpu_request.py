"""A pod's request: its kind, groups of containers that need the same GPU, and requests that no node can serve."""

import pytest

from gpuagent.domain.pods.parse_pod import parse_pod
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_COUNT, GPU_COUNT_LABEL, GPU_MEM, GPU_WHOLE
from gpuscheduler.core.gpu_request import NO_REQUEST, Amounts, GpuRequest, Group, RequestKind, gpu_request


def container(name, restart=None, **limits):
    names = {"mem": GPU_MEM, "core": GPU_CORE, "whole": GPU_WHOLE, "count": GPU_COUNT}
    found = {"name": name, "resources": {"limits": {names[key]: str(units) for key, units in limits.items()}}}
    return found if restart is None else {**found, "restartPolicy": restart}


def request(*containers, init=(), labels=None):
    pod = {"metadata": {"labels": labels or {}}, "spec": {"containers": list(containers), "initContainers": list(init)}}
    return gpu_request(parse_pod(pod))


def share(*groups, need, gpus=1):
    return GpuRequest(RequestKind.SHARE, gpus, tuple(Group(*group) for group in groups), need)


def test_a_pod_without_our_resources_asks_for_nothing():
    assert request(container("a")) == NO_REQUEST


def test_each_container_is_a_group_of_its_own():
    found = request(container("a", mem=4), container("b"), container("c", mem=2, core=10))
    one, two = Amounts(4), Amounts(2, 10)
    assert found == share((((0, one),), one), (((2, two),), two), need=Amounts(6, 10))


def test_containers_that_reuse_an_init_containers_units_are_one_group():
    found = request(container("a", mem=2), container("b", mem=2), container("c", mem=1), init=[container("i", mem=3)])
    assert [(dict(group.containers).keys(), group.need) for group in found.groups] == [
        ({0, 1}, Amounts(4)),
        ({2}, Amounts(1)),
    ]


def test_sidecars_and_lone_init_containers_are_in_the_first_group():
    found = request(
        container("a", mem=2), container("b", mem=1), init=[container("s", "Always", mem=3), container("i", core=5)]
    )
    assert [(dict(group.containers).keys(), group.need) for group in found.groups] == [
        ({0}, Amounts(5, 5)),
        ({1}, Amounts(1)),
    ]


def test_an_init_container_alone_is_a_request():
    found = request(container("a"), init=[container("i", mem=3)])
    assert found == share(((), Amounts(3)), need=Amounts(3))


def test_gpu_count_spreads_each_container():
    found = request(container("a", mem=6), labels={GPU_COUNT_LABEL: "3"})
    assert (found.gpus, found.groups[0].need.over(3), found.problem) == (3, Amounts(2), "")


def test_a_count_beside_memory_changes_nothing():
    assert request(container("a", mem=6, count=2)) == request(container("a", mem=6))


def test_whole_gpus_are_counted_as_kubernetes_does():
    assert request(container("a", whole=2), init=[container("i", whole=4)]) == GpuRequest(RequestKind.WHOLE, gpus=4)


@pytest.mark.parametrize(
    ("containers", "labels", "words"),
    [
        ([container("a", mem=7)], {GPU_COUNT_LABEL: "2"}, "asks for 7 of aliyun.com/gpu-mem in a, which 2 GPUs"),
        ([container("a", mem=7)], {GPU_COUNT_LABEL: "two"}, "a value that is no number of GPUs"),
        ([container("a", mem="-1")], {}, "an amount that is no whole number (aliyun.com/gpu-mem of a)"),
        ([container("a", whole=1), container("b", mem=1)], {}, "asks for aliyun.com/gpu and for aliyun.com/gpu-mem"),
        (
            [container("a", mem="8Gi")],
            {},
            "asks for 8589934592 of aliyun.com/gpu-mem, which is more than any node has;",
        ),
        ([container("a", mem="8Gi")], {}, "each of 1 GiB by default, and not of bytes: write 8"),
        ([container("a", mem="512Mi")], {}, "and not of bytes: write 1"),
        ([container("a", mem="8G")], {}, "and not of bytes: write 8"),
        ([container("a"), container("b", core="1Mi")], {}, "asks for 1048576 of aliyun.com/gpu-core.percentage, which"),
        (
            [container("a", whole="1Ti")],
            {},
            "asks for 1099511627776 of aliyun.com/gpu, which is more than any node has",
        ),
        (
            [container("a"), container("b", count=1)],
            {},
            "asks for aliyun.com/gpu-count in its limits, which gives it no",
        ),
        ([container("a", count="x")], {}, "asks for aliyun.com/gpu-count in its limits, which gives it no GPU"),
    ],
)
def test_a_request_that_no_node_can_serve_says_why(containers, labels, words):
    assert words in request(*containers, labels=labels).problem


def test_the_request_of_a_template_is_worked_out_once():
    def read():
        return request(container("a", mem=4), container("b", mem=2, core=10))

    assert read() is read()


@pytest.mark.parametrize(
    "other",
    [
        ([container("a", mem=5), container("b")], [], {}),
        ([container("a", mem=4), container("b")], [container("i", mem=6)], {}),
        ([container("a", mem=4), container("b")], [container("i", restart="Always", mem=4)], {}),
        ([container("a", mem=4), container("b")], [], {GPU_COUNT_LABEL: "2"}),
        ([container("b"), container("a", mem=4)], [], {}),
        ([container("a", mem="much"), container("b")], [], {}),
    ],
)
def test_a_pod_that_differs_has_a_request_of_its_own(other):
    containers, init, labels = other
    usual = request(container("a", mem=4), container("b"))
    assert request(*containers, init=init, labels=labels) != usual
