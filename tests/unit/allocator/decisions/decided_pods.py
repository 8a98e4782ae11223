"""Pods with decisions of schedulers, and the calls of a kubelet that admits them."""

from gpuagent.domain.sharing.mode import Mode
from tests.unit.allocator.desk import NodeWithKubelet
from tests.unit.domain.builders import (
    MEM,
    box,
    in_force,
    owner,
    pod_json,
)
from tests.unit.domain.scheduling.test_decision import v1


def desk_of(*pods, mode=Mode.SHARE, gpus=4, tells_pods=True, **policy) -> NodeWithKubelet:
    desk = NodeWithKubelet(in_force(mode, gpus if isinstance(gpus, tuple) else box(gpus), **policy)).pods(*pods)
    desk.book.tells_pods = tells_pods
    return desk


def decided(name, index, size=4, second=0, **more):
    return pod_json(name, {MEM: size}, annotations=v1(index, size), created=f"2026-01-01T00:00:{second:02}Z", **more)


def serve(desk, name, size=4, container="main", resource=MEM):
    """Kubelet, which knows of no pod after this one, asks for it."""
    desk.book.asking = name
    return desk.serve(owner(name, container), resource, size)


def at(desk, name, container="main", resource=MEM) -> list[int]:
    return sorted(desk.snap.gpus[u].minor for u in desk.on(owner(name, container), resource))
