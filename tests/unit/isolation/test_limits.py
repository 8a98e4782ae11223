"""The driver `limits`, with real directories as cgroups and the helper's protocol on a real socket."""

import errno
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from gpuagent.domain.pods.pod import ContainerRef, PodName
from gpuagent.domain.sharing.grant import Grant
from gpuagent.domain.sharing.isolation_layers import Layer
from gpuagent.domain.sharing.memory_shares import PodShares
from gpuagent.domain.sharing.mode import GPU_MEM, Kind
from gpuagent.domain.sharing.units import MIB
from gpuagent.host.cgroup_watch import CgroupWatch
from gpuagent.host.limits_client import NO_LIMIT, HelperGoneError, LimitsClient, Target
from gpuagent.isolation.interface import CannotIsolateError, IsolationError, Need, Starting
from gpuagent.isolation.limits.driver import NOT_KNOWN, LimitsIsolation
from gpuagent.isolation.limits.keeper import UNKNOWN_S
from gpuagent.isolation.limits.record import LimitsRecord
from standin.waiting import PATIENCE_S
from tests.fake_limits_helper import GPU_0, FakeLimitsHelper
from tests.unit.domain.builders import gpu

GIB = 2**30
UID = "11111111-2222-4333-8444-555555555555"
OTHER = "99999999-2222-4333-8444-555555555555"
OWNER = ContainerRef(PodName("ml", "train"), "main")
GPU = replace(gpu(0), uuid=GPU_0)
SHARE = Grant(resource=GPU_MEM, kind=Kind.MEMORY_CGPU, gpus=(GPU,), units=4, env={})
SANDBOX, MAIN, SIDE = ("a" * 64, "b" * 64, "c" * 64)
WAIT_S = PATIENCE_S


def one_container(size: int = 4 * GIB) -> PodShares:
    return PodShares({GPU_0: size}, {"main": {GPU_0: size}})


TWO_CONTAINERS = PodShares({GPU_0: 12 * GIB}, {"main": {GPU_0: 8 * GIB}, "side": {GPU_0: 4 * GIB}})


class Node:
    """A node with a helper, pods as directories, and the driver."""

    def __init__(self, root: Path, backend: str) -> None:
        self.pods_root = root / "cgroup" / "kubepods"
        self.pods_root.mkdir(parents=True)
        (root / "run").mkdir()
        self.helper = FakeLimitsHelper(root / "run" / "limits.sock")
        self.helper.pods_root = str(self.pods_root)
        self.helper.backend = backend
        self.state_dir = root / "state"
        self.state_dir.mkdir()
        self.boot_id = root / "boot_id"
        self.boot_id.write_text("first\n")
        self.layers: list[Layer] = []
        self.reported = threading.Condition()
        self.driver = self.new_driver()

    def new_driver(self) -> LimitsIsolation:
        """The driver of an agent that starts."""
        record = LimitsRecord(self.state_dir, self.boot_id)
        return LimitsIsolation(self.helper.path, record, audit_s=0.05, first_answer_s=0.2)

    def report(self, layer: Layer) -> None:
        with self.reported:
            self.layers.append(layer)
            self.reported.notify_all()

    def until(self, holds) -> None:
        """Wait until the latest report is as said."""
        with self.reported:
            assert self.reported.wait_for(lambda: self.layers and holds(self.layers[-1]), WAIT_S), self.layers[-1:]

    def start(self, **pods: PodShares) -> "Node":
        self.driver.desire(self.need(pods))
        self.driver.start(self.report)
        return self

    def need(self, pods: dict[str, PodShares]) -> Need:
        by_uid = {uid.replace("_", "-").removeprefix("u"): shares for uid, shares in pods.items()}
        return Need(gpus=(GPU,), pods=by_uid, knows_pods=True)

    def pod(self, uid: str, *leaves: str) -> Path:
        """A pod's cgroup with those of its containers."""
        directory = self.pods_root / f"pod{uid}"
        for leaf in leaves:
            (directory / leaf).mkdir(parents=True)
        return directory

    def limit(self, leaf: str = "", uid: str = UID) -> int | None:
        return self.helper.limits.get(Target(GPU_0, uid, leaf))


@pytest.fixture(params=["dmem", "misc"])
def node(request, tmp_path) -> Iterator[Node]:
    with running(tmp_path, request.param) as made:
        yield made


@contextmanager
def running(root: Path, backend: str) -> Iterator[Node]:
    node = Node(root, backend)
    with node.helper:
        try:
            yield node
        finally:
            node.driver.stop()


def start_of(shares: PodShares, owner: ContainerRef | None = OWNER, uid: str = UID) -> Starting:
    return Starting(owner, {uid: shares})


def eventually(holds) -> None:
    """Wait until it holds."""
    done = threading.Event()
    for _ in range(int(WAIT_S / 0.01)):
        if holds():
            return
        done.wait(0.01)
    raise AssertionError("it does not come to hold")


def test_a_pods_limit_is_in_force_before_its_container_starts(node):
    node.start().until(lambda layer: layer.problem is None)
    node.pod(UID, SANDBOX)
    node.driver.verify(SHARE, start_of(one_container()))
    assert node.limit() == 4 * GIB


def test_a_container_waits_until_kubelet_has_made_the_pods_cgroup(node):
    node.start().until(lambda layer: layer.problem is None)
    with pytest.raises(IsolationError, match="no cgroup of its pod yet"):
        node.driver.verify(SHARE, start_of(one_container()))


def test_a_container_waits_until_kubelets_checkpoint_shows_its_pod(node):
    node.start().until(lambda layer: layer.problem is None)
    node.pod(UID, SANDBOX)
    with pytest.raises(IsolationError, match="checkpoint does not show its pod yet"):
        node.driver.verify(SHARE, Starting(OWNER, {}))
    with pytest.raises(IsolationError, match="does not show its share of GPU 0"):
        node.driver.verify(SHARE, start_of(PodShares()))


def test_a_limit_that_does_not_come_into_force_keeps_the_container_waiting(node):
    node.start().until(lambda layer: layer.problem is None)
    node.pod(UID, SANDBOX)
    node.helper.errors[Target(GPU_0, UID)] = ("DriverError", "the driver hangs: reboot the node")
    with pytest.raises(IsolationError, match="the driver hangs: reboot the node"):
        node.driver.verify(SHARE, start_of(one_container()))


def test_a_limit_below_the_use_keeps_the_container_waiting(node):
    node.start().until(lambda layer: layer.problem is None)
    node.pod(UID, SANDBOX)
    node.helper.used[Target(GPU_0, UID)] = 5 * GIB
    with pytest.raises(IsolationError, match="it uses more GPU memory than its limit of 4096 MiB"):
        node.driver.verify(SHARE, start_of(one_container()))


def test_without_a_helper_the_container_waits(node):
    node.start().until(lambda layer: layer.problem is None)
    node.pod(UID, SANDBOX)
    node.helper.stop()
    with pytest.raises(IsolationError, match="no helper for memory limits answers"):
        node.driver.verify(SHARE, start_of(one_container()))


def test_an_audit_sets_what_is_missing_when_the_agent_starts(node):
    node.pod(UID, SANDBOX, MAIN)
    node.driver.desire(node.need({UID: one_container()}))
    node.driver.start(node.report)
    node.until(lambda layer: layer.problem is None)
    assert node.limit() == 4 * GIB
    assert node.layers[-1].repaired == {"missing": 1}


def test_no_container_starts_before_the_limits_of_running_pods_were_checked(node):
    node.driver.start(node.report)
    node.until(lambda layer: layer.installed)
    assert node.layers[-1].problem == "the memory limits of running pods are being checked"


def test_shares_that_stay_unknown_are_a_problem_that_says_which_source_is_missing(node):
    """Also after all limits were checked once: nobody looks after them any more."""
    now = [0.0]
    node.driver.stop()
    node.driver = LimitsIsolation(
        node.helper.path, LimitsRecord(node.state_dir, node.boot_id), first_answer_s=0.2, clock=lambda: now[0]
    )
    node.pod(UID, SANDBOX)
    node.start(**{UID: one_container()}).until(lambda layer: layer.problem is None)
    missing = "kubelet's checkpoint does not show the devices of ml/train[main]: mount it"
    unknown = Need(gpus=(GPU,), unknown=missing)
    node.driver.desire(unknown)
    now[0] += UNKNOWN_S - 1
    node.driver.desire(replace(unknown, in_use=True))
    assert node.layers[-1].problem is None, "a checkpoint may be a moment older than the list"
    now[0] += 1
    node.driver.desire(node.need({}))
    node.driver.desire(unknown)
    now[0] += UNKNOWN_S
    node.driver.desire(replace(unknown, pods={UID: one_container()}))
    node.until(lambda layer: layer.problem is not None)
    assert node.layers[-1].problem == f"{NOT_KNOWN}: {missing}"
    node.driver.desire(node.need({UID: one_container()}))
    node.until(lambda layer: layer.problem is None)


def test_an_audit_puts_a_changed_limit_right(node):
    node.pod(UID, SANDBOX, MAIN)
    node.start(**{UID: one_container()}).until(lambda layer: layer.problem is None)
    node.helper.limits[Target(GPU_0, UID)] = 40 * GIB
    eventually(lambda: node.limit() == 4 * GIB)
    # At the pod, and at its container as well if the change came between the audit's two readings.
    node.until(lambda layer: layer.repaired.get("different") in {1, 2})


def test_a_pod_that_has_more_than_its_share_is_contained_and_reported(node):
    node.pod(UID, SANDBOX, MAIN)
    node.helper.used[Target(GPU_0, UID)] = 6 * GIB
    node.start(**{UID: one_container()}).until(lambda layer: bool(layer.unlimited))
    layer = node.layers[-1]
    assert "more GPU memory than its limit of 4096 MiB" in layer.unlimited[UID]
    assert GPU_0 in layer.left_out
    assert node.limit() == 6 * GIB
    node.helper.used.clear()
    node.until(lambda layer: not layer.unlimited and not layer.left_out)
    assert node.limit() == 4 * GIB


def test_a_restarted_helper_gets_all_limits_again(node):
    node.pod(UID, SANDBOX, MAIN)
    node.start(**{UID: one_container()}).until(lambda layer: layer.problem is None)
    node.helper.stop()
    node.until(lambda layer: layer.problem is not None)
    assert node.layers[-1].installed
    node.helper.limits.clear()
    node.helper.start()
    node.until(lambda layer: layer.problem is None)
    assert node.limit() == 4 * GIB


def test_limits_that_went_with_the_helper_are_set_again_at_its_next_answer(node):
    """A helper that is restarted between two audits: the driver may have dropped all limits meanwhile."""
    node.driver = LimitsIsolation(node.helper.path, LimitsRecord(node.state_dir, node.boot_id), audit_s=3600)
    node.pod(UID, SANDBOX, MAIN)
    node.start(**{UID: one_container()}).until(lambda layer: layer.problem is None)
    node.helper.stop()
    node.helper.limits.clear()
    node.helper.start()
    node.pod(OTHER, SANDBOX)
    node.driver.verify(SHARE, start_of(one_container(), uid=OTHER))
    eventually(lambda: node.limit() == 4 * GIB)


def test_a_resized_share_is_in_force_at_once(node):
    node.pod(UID, SANDBOX, MAIN)
    node.start(**{UID: one_container()}).until(lambda layer: layer.problem is None)
    node.driver.desire(node.need({UID: one_container(6 * GIB)}))
    eventually(lambda: node.limit() == 6 * GIB)


def test_a_resize_below_the_use_leaves_the_former_limit(node):
    node.pod(UID, SANDBOX, MAIN)
    node.start(**{UID: one_container()}).until(lambda layer: layer.problem is None)
    node.helper.used[Target(GPU_0, UID)] = 3 * GIB
    node.driver.desire(node.need({UID: one_container(2 * GIB)}))
    eventually(lambda: node.limit() == 4 * GIB)
    node.until(lambda layer: not layer.unlimited)


def test_containers_of_a_pod_get_limits_of_their_own(node):
    node.start().until(lambda layer: layer.problem is None)
    pod = node.pod(UID, SANDBOX)
    node.driver.verify(SHARE, start_of(TWO_CONTAINERS))
    is_dmem = node.helper.backend == "dmem"
    # On misc a little less than the smallest share, so that a container's own limit can be told from the pod's.
    assert node.limit() == (12 * GIB if is_dmem else 4 * GIB - 4 * MIB)
    (pod / MAIN).mkdir()
    eventually(lambda: node.limit(MAIN) == 8 * GIB)
    node.driver.verify(SHARE, start_of(TWO_CONTAINERS, OWNER._replace(container="side")))
    (pod / SIDE).mkdir()
    eventually(lambda: node.limit(SIDE) == 4 * GIB)
    assert node.limit(MAIN) == 8 * GIB


def test_a_container_that_is_born_with_a_dead_pods_limit_gets_its_own_pods(tmp_path):
    with running(tmp_path, "misc") as node:
        node.start().until(lambda layer: layer.problem is None)
        pod = node.pod(UID, SANDBOX)
        node.driver.verify(SHARE, start_of(one_container()))
        node.helper.limits[Target(GPU_0, UID, MAIN)] = 40 * GIB
        (pod / MAIN).mkdir()
        eventually(lambda: node.limit(MAIN) == 4 * GIB)


def test_a_pod_without_a_share_does_not_keep_a_dead_pods_limit(tmp_path):
    with running(tmp_path, "misc") as node:
        node.start().until(lambda layer: layer.problem is None)
        node.helper.limits[Target(GPU_0, OTHER, MAIN)] = GIB
        node.pod(OTHER, MAIN)
        eventually(lambda: node.limit(MAIN, OTHER) == NO_LIMIT)


def test_an_agent_that_starts_takes_no_limit_off_pods_that_it_does_not_know_yet(tmp_path):
    """Also where kubelet's allocations come late, and where they come while the watch reads what is there."""
    with running(tmp_path, "misc") as node:
        pods = {f"{number:08d}-2222-4333-8444-555555555555": one_container() for number in range(40)}
        for uid in pods:
            node.pod(uid, SANDBOX, MAIN)
            node.helper.limits[Target(GPU_0, uid)] = 4 * GIB
        node.driver.start(node.report)
        node.until(lambda layer: layer.installed)
        node.driver.desire(node.need(pods))
        node.until(lambda layer: layer.problem is None)
        sets = [request for request in node.helper.requests if request["op"] == "set"]
        assert sets == []


def test_a_gpu_that_cannot_be_read_leaves_the_limits_of_others_in_force(node):
    both = PodShares({GPU_0: 4 * GIB, "GPU-lost": 4 * GIB}, {"main": {GPU_0: 4 * GIB, "GPU-lost": 4 * GIB}})
    node.pod(UID, SANDBOX, MAIN)
    node.pod(OTHER, SANDBOX, MAIN)
    node.start(**{UID: both, OTHER: one_container()}).until(lambda layer: layer.problem is None)
    assert node.limit() == node.limit(uid=OTHER) == 4 * GIB
    layer = node.layers[-1]
    assert set(layer.left_out) == {"GPU-lost"}
    assert set(layer.unlimited) == {UID}


def test_a_node_without_inotify_watches_audits_nevertheless(node, monkeypatch):
    def exhausted(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    threads = layer_threads()
    monkeypatch.setattr(CgroupWatch, "add", exhausted)
    monkeypatch.setattr(CgroupWatch, "add_pods_of", exhausted)
    node.pod(UID, SANDBOX, MAIN)
    node.start(**{UID: one_container()}).until(lambda layer: layer.repaired.get("missing") == 1)
    assert node.limit() == 4 * GIB
    if node.helper.backend == "misc":
        node.until(lambda layer: "fs.inotify.max_user_watches" in (layer.problem or ""))
    assert layer_threads() <= threads + 2


def layer_threads() -> int:
    """Only the layer's own: threads of tests of other modules begin and end meanwhile."""
    return sum(thread.name in {"limits", "cgroup-watch"} for thread in threading.enumerate())


def test_a_helper_that_is_away_is_asked_once_a_second(node, monkeypatch):
    node.start().until(lambda layer: layer.problem is None)
    asked = []
    began = time.monotonic()
    monkeypatch.setattr(LimitsClient, "describe", lambda _: asked.append(1) or _gone())
    node.helper.stop()
    node.driver.desire(node.need({UID: one_container()}))
    node.pod(UID, SANDBOX)
    node.until(lambda layer: layer.problem is not None)
    eventually(lambda: len(asked) > 0)
    threading.Event().wait(0.5)
    assert len(asked) <= 3 + (time.monotonic() - began)


def _gone() -> None:
    raise HelperGoneError("no helper answers")


def test_claims_whose_containers_nobody_can_name_are_refused_where_each_needs_a_limit(tmp_path):
    with running(tmp_path, "misc") as node:
        node.start().until(lambda layer: layer.problem is None)
        node.pod(UID, SANDBOX)
        with pytest.raises(CannotIsolateError, match="kubelet does not say which container"):
            node.driver.verify(SHARE, start_of(TWO_CONTAINERS, owner=None))


def test_an_init_container_gets_its_own_share(tmp_path):
    with running(tmp_path, "misc") as node:
        node.start().until(lambda layer: layer.problem is None)
        pod = node.pod(UID, SANDBOX)
        node.driver.verify(SHARE, Starting(None, {UID: TWO_CONTAINERS}, "main"))
        (pod / MAIN).mkdir()
        eventually(lambda: node.limit(MAIN) == 8 * GIB)


def test_auto_leaves_limits_when_the_helper_is_taken_off_the_node(node):
    node.start().until(lambda layer: layer.problem is None)
    node.helper.stop()
    node.helper.path.unlink(missing_ok=True)
    node.helper.path.parent.rmdir()
    node.until(lambda layer: not layer.installed)


def test_auto_leaves_limits_when_the_driver_has_none_any_more(node):
    node.pod(UID, SANDBOX)
    node.start(**{UID: one_container()}).until(lambda layer: layer.problem is None)
    node.helper.stop()
    node.until(lambda layer: layer.problem is not None)
    node.helper.problem = "driver 580.95 has no memory limits: they begin with 615"
    node.helper.start()
    node.until(lambda layer: not layer.installed)


def test_auto_goes_on_without_limits_where_the_helper_is_not_deployed(tmp_path):
    node = Node(tmp_path, "misc")
    node.helper.path.parent.rmdir()
    node.start().until(lambda layer: not layer.installed)
    assert "limits.enabled=true" in (node.layers[-1].problem or "")
    node.driver.stop()


def test_auto_goes_on_without_limits_where_the_driver_has_none(node):
    node.helper.problem = "driver 580.95 has no memory limits: they begin with 615"
    node.start().until(lambda layer: layer.problem == node.helper.problem)
    assert not node.layers[-1].installed


def test_a_node_on_which_limits_have_worked_waits_for_the_helper(node):
    node.start().until(lambda layer: layer.problem is None)
    node.driver.stop()
    node.helper.stop()
    for boot, keeps in (("first", True), ("second", False)):
        node.boot_id.write_text(boot)
        node.layers.clear()
        node.driver = node.new_driver()
        node.start().until(lambda layer: layer.problem is not None)
        assert node.layers[-1].installed is keeps
        node.driver.stop()


POOLED_BESIDE_ANOTHER = PodShares(
    {GPU_0: 12 * GIB},
    {"main": {GPU_0: 8 * GIB}, "side": {GPU_0: 8 * GIB}, "third": {GPU_0: 4 * GIB}},
    frozenset({GPU_0}),
)


def audits(node: Node, count: int) -> None:
    """Wait until so many more audits have read the pod's limit."""
    done = len(node.helper.requests)
    target = {"op": "get", "gpu": GPU_0, "pod": UID, "leaf": ""}
    eventually(lambda: node.helper.requests[done:].count(target) > count)


def test_a_pod_that_is_limited_as_a_whole_is_one_line_of_the_log(tmp_path, caplog):
    """It came to a claim while it ran. The audits go on for as long as it lives."""
    with running(tmp_path, "misc") as node:
        node.pod(UID, SANDBOX)
        node.start(**{UID: POOLED_BESIDE_ANOTHER}).until(lambda layer: layer.problem is None)
        audits(node, 3)
        assert node.limit() == 12 * GIB
    assert [record.message for record in caplog.records].count("Limited a pod as a whole only") == 1


def test_a_pod_whose_containers_cannot_be_watched_is_one_line_of_the_log(node, caplog, monkeypatch):
    monkeypatch.setattr(CgroupWatch, "add", Mock(side_effect=OSError(28, "No space left on device")))
    node.pod(UID, SANDBOX)
    node.start(**{UID: one_container()}).until(lambda layer: layer.problem is None)
    audits(node, 3)
    assert [record.message for record in caplog.records].count("Failed to watch the containers of a pod") == 1


def test_a_pod_that_ends_while_it_is_looked_at_is_no_line_of_the_log(node, caplog, monkeypatch):
    monkeypatch.setattr(CgroupWatch, "add", Mock(side_effect=FileNotFoundError(2, "No such file or directory")))
    node.pod(UID, SANDBOX)
    node.start(**{UID: one_container()}).until(lambda layer: layer.problem is None)
    audits(node, 1)
    assert caplog.records == []


def of_gib(gib: int) -> PodShares:
    return PodShares({GPU_0: gib * GIB}, {"main": {GPU_0: gib * GIB}})


def test_a_resized_pod_gets_its_limit_at_once_and_the_driver_says_so(node):
    node.pod(UID, SANDBOX, MAIN)
    node.driver = LimitsIsolation(node.helper.path, LimitsRecord(node.state_dir, node.boot_id), first_answer_s=0.2)
    node.start(**{UID: of_gib(8)}).until(lambda layer: layer.problem is None)
    resized = {UID: of_gib(12)}
    # Audits are seconds apart here, so a change of the need has to bring one.
    node.driver.desire(replace(node.need(resized), resized=resized))
    node.until(lambda layer: layer.applied == resized)
    assert node.limit() == 12 * GIB
    node.driver.desire(replace(node.need({UID: of_gib(8)}), resized=resized))
    node.until(lambda layer: layer.applied == {UID: of_gib(8)})
    node.driver.desire(node.need({UID: of_gib(8)}))
    node.until(lambda layer: layer.applied == {})


GPU_1 = "GPU-00000001-0000-4000-8000-000000000001"


@pytest.mark.parametrize("born", ["before the agent", "while it runs"])
def test_a_gpu_that_a_pod_has_whole_keeps_no_limit_of_a_dead_pod(tmp_path, born):
    """Beside its share of another GPU: on backend misc, a container may be born with limits on every GPU."""
    with running(tmp_path, "misc") as node:
        node.helper.gpus[GPU_1] = None
        inherited = Target(GPU_1, UID, MAIN)
        of_pod = Target(GPU_1, UID)

        def bear() -> None:
            node.helper.limits.update({inherited: GIB, of_pod: 2 * GIB})
            node.pod(UID, MAIN)

        shares = one_container()
        need = replace(node.need({UID: shares}), gpus=(GPU, replace(gpu(1), uuid=GPU_1)))
        if born == "before the agent":
            bear()
        node.driver.desire(need)
        node.driver.start(node.report)
        node.until(lambda layer: layer.problem is None)
        if born == "while it runs":
            node.pod(UID, SANDBOX)
            node.driver.verify(SHARE, start_of(shares))
            bear()
        eventually(lambda: node.helper.limits[inherited] == NO_LIMIT)
        assert node.limit() == 4 * GIB
        node.until(lambda layer: layer.repaired.get("foreign", 0) >= 1)
        assert node.limit(MAIN) is None
        assert not node.layers[-1].unlimited


def test_a_gpu_whose_limits_cannot_be_taken_off_does_not_end_the_audit(tmp_path, caplog):
    with running(tmp_path, "misc") as node:
        node.helper.gpus[GPU_1] = None
        node.pod(OTHER, SANDBOX)
        refused = Target(GPU_1, OTHER, SANDBOX)
        node.helper.limits[refused] = GIB
        node.helper.failing_sets[refused] = "the GPU is lost"
        node.pod(UID, SANDBOX)
        pods = {OTHER: one_container(), UID: one_container()}
        node.driver.desire(replace(node.need(pods), gpus=(GPU, replace(gpu(1), uuid=GPU_1))))
        node.driver.start(node.report)
        node.until(lambda layer: layer.problem is None)
        assert node.limit() == node.limit(uid=OTHER) == 4 * GIB
        warnings = [record for record in caplog.records if record.message == "Failed to look at a new container"]
        assert len(warnings) == 1


@pytest.mark.parametrize("is_asked", [True, False], ids=["first pod of the claim", "later pod of the claim"])
def test_a_container_that_uses_a_claim_is_no_stranger(node, is_asked):
    """Kubelet asks about the claim, once for all its pods, and about none of the containers."""
    shares = replace(one_container(), of_claims=True)
    node.start().until(lambda layer: layer.problem is None)
    if not is_asked:
        node.driver.desire(node.need({UID: shares}))
    node.pod(UID)
    node.pods_root.joinpath(f"pod{UID}").mkdir()
    if is_asked:
        node.driver.verify(SHARE, Starting(None, {UID: shares}))
    for leaf in (SANDBOX, MAIN):
        (node.pods_root / f"pod{UID}" / leaf).mkdir()
    node.driver.desire(node.need({UID: shares}))
    # One more pod, so that whatever was to be done for the first one has been done.
    # Its container has an id of its own, as at every runtime: names are known by them.
    node.pod(OTHER, SIDE)
    node.driver.desire(node.need({UID: shares, OTHER: one_container()}))
    eventually(lambda: node.limit(uid=OTHER) == 4 * GIB)
    assert node.limit() == 4 * GIB
    assert node.limit(MAIN) in {None, 4 * GIB}
    assert node.limit(SANDBOX) in {None, 4 * GIB}
