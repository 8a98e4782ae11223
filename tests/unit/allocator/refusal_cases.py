"""One small case for each text in which the agent refuses: what `docs/troubleshooting.md` has its headings from."""

import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import pytest

from gpuagent._pb import deviceplugin_v1beta1_pb2 as pb
from gpuagent.allocator.allocator import Allocator
from gpuagent.domain import events as ev
from gpuagent.domain.gpus.fence import Fence
from gpuagent.domain.pods.pod import CheckpointEntry, PodName
from gpuagent.domain.refusal import Refusal
from gpuagent.domain.sharing.gpu_share import GpuShare
from gpuagent.domain.sharing.grant import DeviceStrategy
from gpuagent.domain.sharing.memory_shares import PodShares
from gpuagent.domain.sharing.mode import (
    GPU_COUNT_LABEL,
    GROUP_ANNOTATION,
    VISIBLE_ANNOTATION,
    Kind,
    Mode,
)
from gpuagent.domain.sharing.resize import Resize
from gpuagent.domain.sharing.units import MemoryUnit
from gpuagent.host import cgpu_proc as cgpu_host
from gpuagent.host.limits_client import Target
from gpuagent.host.mps_client import MpsError, NoDaemonError
from gpuagent.isolation.cgpu import CgpuIsolation
from gpuagent.isolation.mps.ceiling_keeper import CeilingKeeper
from gpuagent.isolation.mps.choice import DaemonChoice
from gpuagent.isolation.mps.daemon import MpsDaemon
from gpuagent.isolation.mps.driver import MpsIsolation
from gpuagent.kubelet.deviceplugin.servicer import Servicer
from tests.fake_limits_helper import GPU_0
from tests.unit.allocator.fake_kubelet import FakeKubelet
from tests.unit.domain.builders import (
    CORE,
    DGX1V,
    MEM,
    WHOLE,
    NodeUnderTest,
    box,
    gpu,
    holding,
    in_force,
    key,
    node_json,
    owner,
    pod_json,
    unit_ids,
    uuid,
)
from tests.unit.domain.dra.test_resource_slice import claim
from tests.unit.domain.scheduling.test_decision import v1, v2
from tests.unit.isolation.test_limits import GIB, SANDBOX, UID, Node, running

SHARE = Kind.MEMORY_SHARE
CASES: dict[str, Callable[[], Refusal]] = {}


def case(provoke: Callable[[], Refusal]) -> Callable[[], Refusal]:
    CASES[provoke.__name__] = provoke
    return provoke


def refused(kubelet: FakeKubelet, call: Callable[[Allocator], Any]) -> Refusal:
    return kubelet.refusal(lambda: call(kubelet.allocator))


def share(*gpus: Any, pods: tuple[Any, ...] = (), **policy: Any) -> FakeKubelet:
    return FakeKubelet(in_force(Mode.SHARE, gpus or None, **policy)).pods(*pods)


def core_mem(*pods: Any, gpus: Any = None) -> FakeKubelet:
    return FakeKubelet(in_force(Mode.CORE_MEM, gpus, core_step=5, core_mem_both=True)).pods(*pods)


def sharer(gpu_index: int, size: int, name: str = "a", **more: Any) -> Any:
    return pod_json(name, {MEM: size}, annotations=v1(gpu_index, size), **more)


def mesh(*pods: Any) -> FakeKubelet:
    node = in_force(Mode.TOPOLOGY, box(8), trust_visible=True)
    node.inventory(*box(8), wiring=DGX1V)
    return FakeKubelet(node).pods(*pods)


def named(name: str, size: int, group: str, visible: str | None = None, **more: Any) -> Any:
    annotations = {GROUP_ANNOTATION: group} | ({VISIBLE_ANNOTATION: visible} if visible else {})
    return pod_json(name, {WHOLE: size}, annotations=annotations, **more)


def whole_ids(*indexes: int) -> list[str]:
    return [f"{key(n)}-gt-0" for n in indexes]


# -- requests that kubelet does not make ---------------------------------------------------------------------------


@case
def nothing_asked() -> Refusal:
    return refused(share(), lambda a: a.prefer(MEM, [], [], 1))


@case
def more_fixed_than_asked() -> Refusal:
    ids = sorted(unit_ids(0, SHARE, 0, 1))
    return refused(share(), lambda a: a.prefer(MEM, ids, ids, 1))


@case
def a_unit_that_a_resized_pod_has() -> Refusal:
    kubelet = share(*box(1))
    units = unit_ids(0, SHARE, 3)
    stored = {"uid-big": Resize(PodName("ml", "big"), {"main": 1}, {"main": 1}, units)}
    kubelet.node.send(ev.ResizesStored(stored, None, kubelet.node.now))
    kubelet.publish()
    return refused(kubelet, lambda a: a.allocate(MEM, units))


@case
def a_gpu_with_a_claim() -> Refusal:
    kubelet = share(*box(1))
    kubelet.node.send(ev.ClaimsPrepared((claim(kubelet.node, 1024),), kubelet.node.now))
    kubelet.publish()
    return refused(kubelet, lambda a: a.allocate(MEM, unit_ids(0, SHARE, 0)))


@case
def no_device_named() -> Refusal:
    return refused(share(), lambda a: a.allocate(MEM, []))


class Context:
    """A gRPC context that keeps the words of an abort."""

    def abort(self, _code: Any, text: str) -> None:
        raise RuntimeError(text)


def refused_by_service(call: Callable[[Servicer], Any], kubelet: FakeKubelet) -> Refusal:
    report = kubelet.allocator.report = Mock(wraps=kubelet.allocator.report)
    servicer = Servicer(MEM, Mock(verified=True), kubelet.allocator, Mock(), lambda: None)
    with pytest.raises(RuntimeError):
        call(servicer)
    (refusal,) = report.call_args.args
    return refusal


@case
def no_container_named() -> Refusal:
    return refused_by_service(lambda s: s.Allocate(pb.AllocateRequest(), Context()), share())


@case
def a_fault_of_the_agent() -> Refusal:
    kubelet = share()
    kubelet.isolation.prepare = Mock(side_effect=ZeroDivisionError("division by zero"))
    asked = pb.AllocateRequest(
        container_requests=[pb.ContainerAllocateRequest(devices_ids=sorted(unit_ids(0, SHARE, 0)))]
    )
    return refused_by_service(lambda s: s.Allocate(asked, Context()), kubelet)


@case
def fixed_and_not_available() -> Refusal:
    return refused(share(), lambda a: a.prefer(MEM, unit_ids(0, SHARE, 0), unit_ids(0, SHARE, 1), 1))


@case
def a_device_not_on_offer() -> Refusal:
    return refused(share(), lambda a: a.prefer(MEM, ["nonsense"], [], 1))


@case
def a_device_that_does_not_exist() -> Refusal:
    return refused(share(), lambda a: a.allocate(MEM, ["nonsense"]))


@case
def a_device_whose_gpu_is_gone() -> Refusal:
    return refused(share(), lambda a: a.prestart(MEM, ["gone234567-ms-0"]))


@case
def a_gpu_that_is_gone() -> Refusal:
    kubelet = mesh(pod_json("a", {WHOLE: 2}))
    offered = sorted(kubelet.node.ids(WHOLE))
    new = gpu(3, uuid="GPU-ffffffff-0000-0000-0000-000000000003")
    kubelet.node.inventory(*(new if n == 3 else gpu(n) for n in range(8)), wiring=DGX1V)
    kubelet.publish()
    return refused(kubelet, lambda a: a.prefer(WHOLE, offered, whole_ids(3), 2))


@case
def devices_of_another_resource() -> Refusal:
    return refused(share(), lambda a: a.allocate(MEM, whole_ids(0)))


# -- the mode ------------------------------------------------------------------------------------------------------


@case
def a_resource_of_another_mode() -> Refusal:
    return refused(share(), lambda a: a.prefer(WHOLE, whole_ids(0), [], 1))


@case
def units_of_the_former_mode() -> Refusal:
    kubelet = share()
    kubelet.node.label("topology").wait(3)
    kubelet.publish()
    return refused(kubelet, lambda a: a.allocate(MEM, unit_ids(0, SHARE, 1)))


@case
def kubelet_does_not_answer() -> Refusal:
    kubelet = share(pods=(sharer(0, 4), sharer(1, 4, "b")))
    kubelet.allocations.answers_queries = False
    return kubelet.refusal(lambda: kubelet.prefer(MEM, 4))


@case
def before_the_first_look() -> Refusal:
    kubelet = share()
    fresh = Allocator(
        clock=lambda: 0.0,
        kubelet=kubelet.allocations,
        isolation={},
        strategy=DeviceStrategy.CDI,
        send_event=lambda _: None,
    )
    return kubelet.refusal(lambda: fresh.prefer(MEM, ["x"], [], 1))


# -- shares ----------------------------------------------------------------------------------------------------------


@case
def an_old_kubelet_before_its_allocations_were_read() -> Refusal:
    status = {"status": {"nodeInfo": {"kubeletVersion": "v1.18.20"}}}
    kubelet = FakeKubelet(
        NodeUnderTest(Mode.SHARE).inventory(*box()).send(ev.NodeSeen(node_json("share") | status, 0.0))
    )
    return refused(kubelet, lambda allocator: allocator.allocate(MEM, unit_ids(0, SHARE, 0)))


@case
def units_of_several_gpus() -> Refusal:
    return refused(share(), lambda a: a.allocate(MEM, unit_ids(0, SHARE, 0, 1) | unit_ids(1, SHARE, 0, 1)))


@case
def reused_units_of_several_gpus() -> Refusal:
    kubelet = share(pods=(pod_json("a", {MEM: 4}),))
    return kubelet.refusal(lambda: kubelet.prefer(MEM, 4, unit_ids(0, SHARE, 0) | unit_ids(1, SHARE, 0)))


@case
def reused_units_of_a_gpu_that_is_full() -> Refusal:
    kubelet = share(pods=(pod_json("a", {MEM: 8}, init=({MEM: 2},)),))
    kubelet.allocations.holdings.append(holding("other", unit_ids(0, SHARE, *range(2, 14))))
    return kubelet.refusal(lambda: kubelet.prefer(MEM, 8, unit_ids(0, SHARE, 0, 1)))


@case
def too_much_for_the_node() -> Refusal:
    kubelet = share(pods=(pod_json("big", {MEM: 40}),))
    return kubelet.refusal(lambda: kubelet.prefer(MEM, 40))


@case
def too_much_for_one_gpu() -> Refusal:
    kubelet = share(pods=(pod_json("big", {MEM: 20}),))
    return kubelet.refusal(lambda: kubelet.prefer(MEM, 20))


@case
def too_much_for_so_many_gpus() -> Refusal:
    kubelet = share(pods=(pod_json("a", {MEM: 4}, labels={GPU_COUNT_LABEL: "4"}),))
    return kubelet.refusal(lambda: kubelet.prefer(MEM, 4))


@case
def too_much_beside_the_other_resource() -> Refusal:
    kubelet = core_mem(pod_json("a", {MEM: 12, CORE: 30}), gpus=(gpu(0, 16), gpu(1, 16)))
    kubelet.serve(owner("a"), CORE, 30)
    (on,) = kubelet.on(owner("a"), CORE)
    taken = sorted(i for i in kubelet.free(MEM) if kubelet.snap.units[i] == on)[:8]
    kubelet.allocations.holdings.append(holding("unforeseen", taken))
    return kubelet.refusal(lambda: kubelet.prefer(MEM, 12))


def crowded() -> FakeKubelet:
    kubelet = share(gpu(0), max_pods_per_gpu=1, pods=(pod_json("a", {MEM: 1}), pod_json("b", {MEM: 1}, created="2")))
    kubelet.serve(owner("a"), MEM, 1)
    return kubelet


@case
def too_many_pods_on_every_gpu() -> Refusal:
    kubelet = crowded()
    return kubelet.refusal(lambda: kubelet.prefer(MEM, 1))


@case
def too_many_pods_on_the_gpu_kubelet_picked() -> Refusal:
    return refused(crowded(), lambda a: a.allocate(MEM, unit_ids(0, SHARE, 9)))


@case
def units_that_a_pod_still_holds() -> Refusal:
    kubelet = share(gpu(0), pods=(pod_json("a", {MEM: 12}), pod_json("b", {MEM: 8}, created="2")))
    kubelet.serve(owner("a"), MEM, 12)
    return refused(kubelet, lambda a: a.prefer(MEM, sorted(kubelet.node.ids(MEM)), [], 8))


def labelled(count: str, size: int = 4) -> Refusal:
    kubelet = share(pods=(pod_json("a", {MEM: size}, labels={GPU_COUNT_LABEL: count}),))
    return kubelet.refusal(lambda: kubelet.prefer(MEM, size))


@case
def a_count_that_is_no_number() -> Refusal:
    return labelled("two")


@case
def a_count_that_does_not_divide() -> Refusal:
    return labelled("3")


@case
def a_count_in_core_mem() -> Refusal:
    kubelet = core_mem(pod_json("a", {MEM: 4, CORE: 30}, labels={GPU_COUNT_LABEL: "2"}))
    return kubelet.refusal(lambda: kubelet.prefer(MEM, 4))


@case
def a_spread_that_the_label_does_not_ask_for() -> Refusal:
    kubelet, ids = share(), unit_ids(0, SHARE, *range(4))
    kubelet.allocator.allocate(MEM, ids)
    kubelet.allocations.holdings.append(holding("a", ids))
    kubelet.pods(pod_json("a", {MEM: 4}, labels={GPU_COUNT_LABEL: "2"}))
    return refused(kubelet, lambda a: a.prestart(MEM, ids))


@case
def too_many_pods_by_kubelets_allocations() -> Refusal:
    kubelet = share(gpu(0), max_pods_per_gpu=1, pods=(pod_json("a", {MEM: 1}, {MEM: 1}),))
    kubelet.serve(owner("a"), MEM, 1)
    ids = kubelet.prefer(MEM, 1)
    kubelet.allocator.allocate(MEM, ids)  # it seems to be for the second container
    kubelet.allocations.holdings.append(holding("b", ids))
    return refused(kubelet, lambda a: a.prestart(MEM, ids))


# -- memory and compute --------------------------------------------------------------------------------------------


@case
def compute_between_two_steps() -> Refusal:
    kubelet = core_mem(pod_json("a", {MEM: 4, CORE: 12}))
    return kubelet.refusal(lambda: kubelet.prefer(CORE, 12))


@case
def memory_without_compute() -> Refusal:
    kubelet = core_mem(pod_json("half", {MEM: 4}))
    return kubelet.refusal(lambda: kubelet.prefer(MEM, 4))


@case
def compute_without_memory_by_kubelets_allocations() -> Refusal:
    kubelet, ids = core_mem(), unit_ids(0, Kind.CORE_CORE_MEM, *range(30))
    kubelet.allocator.allocate(CORE, ids)
    kubelet.allocations.holdings.append(holding("a", ids, CORE))
    return refused(kubelet, lambda a: a.prestart(CORE, ids))


@case
def memory_and_compute_apart() -> Refusal:
    kubelet = core_mem(pod_json("a", {MEM: 4, CORE: 30}))
    kubelet.allocator.allocate(MEM, unit_ids(0, Kind.MEMORY_CORE_MEM, 0, 1, 2, 3))
    return refused(kubelet, lambda a: a.allocate(CORE, unit_ids(1, Kind.CORE_CORE_MEM, *range(30))))


# -- whole GPUs, and what a scheduler decided -------------------------------------------------------------------------


@case
def fewer_gpus_than_asked() -> Refusal:
    kubelet = mesh(pod_json("a", {WHOLE: 3}))
    return refused(kubelet, lambda a: a.prefer(WHOLE, whole_ids(1, 5), [], 3))


def decided(group: str, size: int = 2) -> Refusal:
    kubelet = mesh(pod_json("taken", {WHOLE: 1}))
    kubelet.serve(owner("taken"), WHOLE, 1)
    kubelet.pods(pod_json("taken", {WHOLE: 1}), named("a", size, group))
    return kubelet.refusal(lambda: kubelet.prefer(WHOLE, size))


@case
def a_decision_for_a_gpu_that_is_taken() -> Refusal:
    return decided("0,1")


@case
def a_decision_for_a_gpu_that_this_node_lacks() -> Refusal:
    return decided("9,1")


@case
def a_decision_that_names_a_gpu_twice() -> Refusal:
    return decided("1,1")


@case
def a_decision_that_names_a_gpu_by_number_and_uuid() -> Refusal:
    return decided(f"1,{uuid(1)}")


@case
def a_decision_for_fewer_gpus() -> Refusal:
    return decided("1")


@case
def a_decision_across_numa_nodes() -> Refusal:
    kubelet = mesh(pod_json("taken", {WHOLE: 1}), named("a", 2, "5,7", created="2026-01-01T00:00:01Z"))
    kubelet.serve(owner("taken"), WHOLE, 1)
    return refused(kubelet, lambda a: a.prefer(WHOLE, whole_ids(1, 2, 3), [], 2))


@case
def a_decision_for_a_gpu_that_leaves() -> Refusal:
    kubelet = mesh(named("a", 2, "0,3"))
    kubelet.node.send(ev.FenceRead(Fence(indexes=frozenset({"3"})), kubelet.node.now))
    kubelet.publish()
    return refused(kubelet, lambda a: a.prefer(WHOLE, whole_ids(*range(8)), [], 2))


@case
def a_decision_against_a_fixed_gpu() -> Refusal:
    kubelet = mesh(named("a", 2, "0,1"))
    return refused(kubelet, lambda a: a.prefer(WHOLE, whole_ids(0, 1, 2, 3), whole_ids(3), 2))


@case
def units_of_one_numa_node() -> Refusal:
    kubelet = share(gpu(0, numa_node=0), gpu(1, numa_node=1), pods=(pod_json("taken", {MEM: 10}),))
    kubelet.serve(owner("taken"), MEM, 10)
    kubelet.pods(pod_json("a", {MEM: 8}))
    free = [f"{key(0)}-ms-{n}" for n in range(10, 16)]
    return refused(kubelet, lambda a: a.prefer(MEM, free, [], 8))


@case
def a_decision_that_kubelet_did_not_ask_for() -> Refusal:
    return refused(mesh(named("a", 2, "0,5")), lambda a: a.allocate(WHOLE, whole_ids(0, 3)))


@case
def sight_of_a_gpu_not_on_offer() -> Refusal:
    kubelet = mesh(named("a", 1, "3", "0,3"))
    kubelet.node.inventory(*(gpu(n, mig=n == 0) for n in range(8)), wiring=DGX1V)
    kubelet.publish()
    return kubelet.refusal(lambda: kubelet.serve(owner("a"), WHOLE, 1))


@case
def sight_of_a_strangers_gpu() -> Refusal:
    kubelet = mesh(pod_json("stranger", {WHOLE: 1}), named("a", 1, "3", "0,3", created="2026-01-01T00:00:01Z"))
    kubelet.serve(owner("stranger"), WHOLE, 1)
    return kubelet.refusal(lambda: kubelet.serve(owner("a"), WHOLE, 1))


# -- isolation -------------------------------------------------------------------------------------------------------


def isolated(**changes: Any) -> FakeKubelet:
    return FakeKubelet(in_force(Mode.CGPU, (gpu(0, compute_capability=(8, 0), **changes),))).pods(
        pod_json("p", {MEM: 1})
    )


def layered(**changes: Any) -> Refusal:
    kubelet = isolated()
    layers = {name: replace(layer, **changes) for name, layer in kubelet.node.state.isolation.layers.items()}
    kubelet.node.isolation(layers=layers)
    kubelet.publish()
    return refused(kubelet, lambda a: a.allocate(MEM, unit_ids(0, Kind.MEMORY_CGPU, 1)))


@case
def a_layer_that_is_down() -> Refusal:
    return layered(problem="its daemon died")


@case
def a_gpu_that_the_layer_leaves_out() -> Refusal:
    return layered(left_out={gpu(0).uuid: "the module does not know it"})


def before_a_start(verify: Callable[..., None], prepare: Callable[[Any], Any] | None = None) -> Refusal:
    kubelet = isolated()
    kubelet.isolation.prepare = prepare or (lambda grant: grant)
    kubelet.serve(owner("p"), MEM, 1)
    kubelet.isolation.verify = verify
    return refused(kubelet, lambda a: a.prestart(MEM, kubelet.allocations.holdings[0].ids))


def cgpu_folder(**more: Any) -> Any:
    """The module's directory, named as on a node."""
    return Mock(exists=lambda: True, __str__=lambda _: str(cgpu_host.CGPU_PROC), **more)


def cgpu(monkeypatch: pytest.MonkeyPatch, state: Any) -> CgpuIsolation:
    monkeypatch.setattr(cgpu_host, "read", lambda _: state)
    return CgpuIsolation(proc=cgpu_folder())


def cgpu_state(version: tuple[int, int, int] | None = (1, 5, 10), **changes: Any) -> Any:
    one = SimpleNamespace(index=0, max_inst=None, instances=(), policy=3)
    values = {
        "version": cgpu_host.Version(*version) if version else None,
        "version_text": "",
        "gpus": (SimpleNamespace(**{**vars(one), **changes}),),
    }
    return SimpleNamespace(**values)


def cgpu_refuses(state: Any) -> Refusal:
    with pytest.MonkeyPatch.context() as patch:
        return before_a_start(cgpu(patch, state).verify)


@case
def cgpu_and_gpus_of_two_sizes() -> Refusal:
    kubelet = isolated()
    unequal: dict[str, str] = {"ALIYUN_COM_GPU_MEM_DEV": "16,24"}
    driver = CgpuIsolation()
    kubelet.isolation.prepare = lambda grant: driver.prepare(replace(grant, env={**grant.env, **unequal}))
    return refused(kubelet, lambda a: a.allocate(MEM, unit_ids(0, Kind.MEMORY_CGPU, 1)))


@case
def cgpu_that_hangs() -> Refusal:
    answers = threading.Event()
    proc = cgpu_folder(is_dir=lambda: not answers.wait())
    try:
        return before_a_start(CgpuIsolation(proc=proc, answer_s=0.01).verify)
    finally:
        answers.set()


@case
def cgpu_that_is_not_loaded() -> Refusal:
    return cgpu_refuses(None)


@case
def cgpu_of_an_unknown_version() -> Refusal:
    return cgpu_refuses(cgpu_state(None))


@case
def cgpu_of_a_bad_version() -> Refusal:
    return cgpu_refuses(cgpu_state((1, 5, 7)))


@case
def cgpu_without_gpus() -> Refusal:
    return cgpu_refuses(SimpleNamespace(version=cgpu_host.Version(1, 5, 10), version_text="", gpus=()))


@case
def cgpu_without_the_gpu() -> Refusal:
    return cgpu_refuses(cgpu_state(index=7))


@case
def cgpu_with_no_room() -> Refusal:
    return cgpu_refuses(cgpu_state(max_inst=1, instances=("0123456789ab",)))


def mps(
    alive: Exception | None = None, exclusive: Exception | None = None, program: str | None = "mps"
) -> MpsIsolation:
    daemon = SimpleNamespace(
        gpu="GPU-0a",
        pipe_dir=Path("/var/run/gpuagent/mps/a2b3c4d5e6"),
        is_ours=True,
        control=Mock(**{"alive.side_effect": alive}),
        is_there=lambda: False,
    )
    daemons = SimpleNamespace(
        program=program,
        own=Path("/var/run/gpuagent/mps"),
        record=Mock(daemons={}),
        of_gpu=lambda _: daemon,
        of_node=lambda _: daemon,
    )
    modes = Mock(**{"hold.side_effect": exclusive})
    return MpsIsolation(daemons, modes, unit=MemoryUnit())


@case
def mps_at_another_place() -> Refusal:
    driver = mps()
    moved = {"CUDA_MPS_PIPE_DIRECTORY": "/var/run/nvidia-gpu/nvidia-mps"}
    return before_a_start(driver.verify, lambda grant: replace(grant, env={**grant.env, **moved}))


@case
def mps_that_does_not_answer() -> Refusal:
    return before_a_start(mps(NoDaemonError("no MPS control daemon runs at /var/run/gpuagent/mps")).verify)


@case
def mps_that_hangs() -> Refusal:
    hangs = MpsError("MPS hangs on GPU 0: pods ml/train must end (no answer)")
    with patch.object(DaemonChoice, "admit", side_effect=hangs):
        return before_a_start(mps().verify)


@case
def mps_that_does_not_raise_its_ceiling() -> Refusal:
    limited = MpsDaemon(Mock(), "GPU-0a", Path("/var/run/gpuagent/mps/a2b3c4d5e6"), Path("/var/log"))
    keeper = CeilingKeeper(limited, lambda: 0.0)
    control = Mock(**{"limit.return_value": 4186, "servers.return_value": ()})
    whole = GpuShare(23028, 100)

    def admit(*_: object) -> None:
        with patch.object(MpsDaemon, "control", control):
            keeper.start(GpuShare(8373, 100), whole)

    with patch.object(DaemonChoice, "admit", side_effect=admit):
        return before_a_start(mps().verify)


@case
def mps_without_exclusive_mode() -> Refusal:
    return before_a_start(mps(exclusive=MpsError("nvidia-smi -i GPU-0a failed (4): Insufficient Permissions")).verify)


def mps_refuses(driver: MpsIsolation, **changes: Any) -> Refusal:
    kubelet = isolated()
    kubelet.isolation.prepare = lambda grant: driver.prepare(
        replace(grant, gpus=tuple(replace(one, **changes) for one in grant.gpus))
    )
    return refused(kubelet, lambda a: a.allocate(MEM, unit_ids(0, Kind.MEMORY_CGPU, 1)))


@case
def mps_that_is_not_installed() -> Refusal:
    return mps_refuses(mps(program=None))


@case
def mps_and_a_gpu_with_mig() -> Refusal:
    return mps_refuses(mps(), mig=True)


@case
def mps_and_a_gpu_of_unknown_age() -> Refusal:
    return mps_refuses(mps(), compute_capability=None)


@case
def mps_and_a_gpu_before_volta() -> Refusal:
    return mps_refuses(mps(), compute_capability=(6, 1))


@case
def mps_and_several_gpus() -> Refusal:
    kubelet = isolated()
    kubelet.isolation.prepare = lambda grant: mps().prepare(replace(grant, gpus=grant.gpus * 2))
    return refused(kubelet, lambda a: a.allocate(MEM, unit_ids(0, Kind.MEMORY_CGPU, 1)))


@case
def mps_and_compute_of_several_gpus() -> Refusal:
    kubelet = isolated()
    changes = {"kind": Kind.CORE_CORE_MEM}
    kubelet.isolation.prepare = lambda grant: mps().prepare(replace(grant, gpus=grant.gpus * 2, **changes))
    return refused(kubelet, lambda a: a.allocate(MEM, unit_ids(0, Kind.MEMORY_CGPU, 1)))


def limits_refuse(change: Callable[[Node], None], *, in_checkpoint: bool = True) -> Refusal:
    """A container is to start on a node whose driver is `limits`, after a change."""
    kubelet = isolated(uuid=GPU_0)
    kubelet.serve(owner("p"), MEM, 1)
    ids = kubelet.allocations.holdings[0].ids
    if in_checkpoint:
        kubelet.allocations.checkpoint.append(CheckpointEntry(UID, "main", MEM, ids))
    with tempfile.TemporaryDirectory() as directory, running(Path(directory), "dmem") as node:
        node.start().until(lambda layer: layer.problem is None)
        node.pod(UID, SANDBOX)
        change(node)
        kubelet.isolation.verify = node.driver.verify
        return refused(kubelet, lambda a: a.prestart(MEM, ids))


@case
def limits_before_their_helper_has_answered() -> Refusal:
    def change(node: Node) -> None:
        node.driver.stop()
        node.driver = node.new_driver()

    return limits_refuse(change)


@case
def limits_without_their_helper() -> Refusal:
    return limits_refuse(lambda node: node.helper.stop())


@case
def limits_of_a_pod_that_uses_more() -> Refusal:
    return limits_refuse(lambda node: node.helper.used.update({Target(GPU_0, UID): 2 * GIB}))


@case
def limits_of_a_pod_without_a_cgroup() -> Refusal:
    def change(node: Node) -> None:
        for directory in (node.pods_root / f"pod{UID}" / SANDBOX, node.pods_root / f"pod{UID}"):
            directory.rmdir()

    return limits_refuse(change)


@case
def limits_of_a_pod_that_the_checkpoint_lacks() -> Refusal:
    return limits_refuse(lambda _: None, in_checkpoint=False)


@case
def limits_of_a_share_that_the_checkpoint_lacks() -> Refusal:
    """A static pod keeps its UID when it is admitted anew, and may get another GPU then."""
    before = PodShares({}, {"main": {}})
    return limits_refuse(lambda node: node.driver.desire(node.need({UID: before})))


# -- schedulers' decisions about shares ---------------------------------------------------------------------------


@case
def decided_gpu_with_too_little_free() -> Refusal:
    kubelet = share(pods=(pod_json("big", {MEM: 14}),))
    kubelet.serve(owner("big"), MEM, 14)
    kubelet.pods(pod_json("big", {MEM: 14}), sharer(0, 4))
    return refused(kubelet, lambda a: a.prefer(MEM, kubelet.free(MEM), (), 4))


@case
def decided_gpu_that_is_not_offered() -> Refusal:
    kubelet = share(pods=(sharer(0, 4),))
    return refused(kubelet, lambda a: a.prefer(MEM, unit_ids(1, SHARE, *range(8)), (), 4))


@case
def decided_gpu_that_is_unhealthy() -> Refusal:
    kubelet = share(pods=(sharer(0, 4),))
    offered = kubelet.free(MEM)
    kubelet.node.send(ev.XidRaised(uuid(0), 79, kubelet.node.now))
    kubelet.publish()
    return refused(kubelet, lambda a: a.prefer(MEM, offered, (), 4))


@case
def decided_gpu_with_too_many_pods() -> Refusal:
    kubelet = share(pods=(sharer(0, 1, "first"),), max_pods_per_gpu=1)
    kubelet.serve(owner("first"), MEM, 1)
    kubelet.pods(sharer(0, 1, "first"), sharer(0, 1))
    return refused(kubelet, lambda a: a.prefer(MEM, kubelet.free(MEM), (), 1))


@case
def decided_gpu_other_than_that_of_the_init_container() -> Refusal:
    kubelet = share(pods=(sharer(0, 4),))
    return refused(kubelet, lambda a: a.prefer(MEM, kubelet.free(MEM), unit_ids(1, SHARE, 0), 4))


@case
def decided_gpu_that_is_not_there() -> Refusal:
    kubelet = share(pods=(sharer(7, 4),))
    return refused(kubelet, lambda a: a.prefer(MEM, kubelet.free(MEM), (), 4))


@case
def decided_gpus_that_an_init_container_joins() -> Refusal:
    both = v2({"0": {"0": 4}, "1": {"1": 4}})
    kubelet = share(pods=(pod_json("a", {MEM: 4}, {MEM: 4}, init=({MEM: 8},), annotations=both),))
    return refused(kubelet, lambda a: a.prefer(MEM, kubelet.free(MEM), (), 8))


@case
def decided_gpu_that_kubelet_did_not_pick() -> Refusal:
    kubelet = share(pods=(sharer(0, 4),))
    return refused(kubelet, lambda a: a.allocate(MEM, unit_ids(1, SHARE, *range(4))))


@case
def promised_units() -> Refusal:
    kubelet = share(gpu(0), pods=(pod_json("b", {MEM: 8}), sharer(0, 10)))
    return refused(kubelet, lambda a: a.prefer(MEM, kubelet.free(MEM), (), 8))
