"""Pods with decisions of schedulers, and the calls of a kubelet that admits them."""

from gpuagent.domain.sharing.mode import Mode
from tests.unit.allocator.fake_kubelet import FakeKubelet
from tests.unit.domain.builders import (
    MEM,
    box,
    in_force,
    owner,
    pod_json,
)
from tests.unit.domain.scheduling.test_decision import v1


def kubelet_with(*pods, mode=Mode.SHARE, gpus=4, answers_queries=True, **policy) -> FakeKubelet:
    kubelet = FakeKubelet(in_force(mode, gpus if isinstance(gpus, tuple) else box(gpus), **policy)).pods(*pods)
    kubelet.allocations.answers_queries = answers_queries
    return kubelet


def decided(name, index, size=4, second=0, **more):
    return pod_json(name, {MEM: size}, annotations=v1(index, size), created=f"2026-01-01T00:00:{second:02}Z", **more)


def serve(kubelet, name, size=4, container="main", resource=MEM):
    """Kubelet, which knows of no pod after this one, asks for it."""
    kubelet.allocations.admitting = name
    return kubelet.serve(owner(name, container), resource, size)


def at(kubelet, name, container="main", resource=MEM) -> list[int]:
    return sorted(kubelet.snap.gpus[u].minor for u in kubelet.on(owner(name, container), resource))
