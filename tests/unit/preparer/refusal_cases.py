"""One small case for each text in which the agent refuses a claim: what `docs/troubleshooting.md` has its headings from."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.node_state.pod_list import Pods
from gpuagent.domain.refusal import Refusal
from gpuagent.domain.sharing.mode import GPU_MEM, Kind, Mode
from gpuagent.domain.state import State
from gpuagent.isolation.mps.share import SEVERAL_GPUS
from gpuagent.kube.cluster_sync import ClusterSync
from tests.unit.domain.builders import holding, in_force, unit_ids
from tests.unit.domain.dra.prepared_claims import claiming
from tests.unit.domain.dra.test_prepare import result
from tests.unit.isolation.test_limits import running
from tests.unit.preparer.test_preparer import (
    OTHER_UID,
    UID,
    Prepared,
    fenced,
    in_mig_mode,
    lost,
    offered_in_mode_share,
    two_claims,
)

CLAIM_CASES: dict[str, Callable[[], Refusal]] = {}


def case(work: Callable[[Prepared], Any]) -> Callable[[Prepared], Any]:
    """Add the refusal that `work` runs into. It gets a preparer in an empty directory."""

    def provoke() -> Refusal:
        with tempfile.TemporaryDirectory() as directory, pytest.raises(Refusal) as caught:
            work(Prepared(Path(directory)))
        return caught.value

    CLAIM_CASES[f"claim_{work.__name__}"] = provoke
    return work


@case
def with_two_sizes(one: Prepared) -> None:
    one.add(result(0, "4Gi"), result(1, "8Gi"))
    one.prepare()


@case
def with_more_shares_of_a_gpu_than_it_has(one: Prepared) -> None:
    one.add(result(0, "9Gi"), result(0, "9Gi", shareID="s9"))
    one.prepare()


@case
def that_another_container_has_with_others(one: Prepared) -> None:
    one.node.pods(two_claims(one, containers=[[0], [0, 1]]))
    one.preparer.publish(one.node.state)
    one.prepare()
    one.prepare("d", OTHER_UID)


@case
def of_a_pod_with_too_many_claims(one: Prepared) -> None:
    one.node.pods(two_claims(one, containers=[[0, 1]] * 200))
    one.preparer.publish(one.node.state)
    one.prepare()


@case
def before_the_pods_were_read(one: Prepared) -> None:
    two_claims(one, containers=[[0]])
    one.preparer.publish(replace(one.node.state, pods=Pods()))
    one.prepare()


@case
def whose_pod_was_not_seen(one: Prepared) -> None:
    two_claims(one, containers=[[0]])
    one.prepare()


@case
def of_gpu_core_without_compute(one: Prepared) -> None:
    one.add(result(0), device_class="gpu-core.gpuagent.io")
    one.prepare()


@case
def of_another_driver(one: Prepared) -> None:
    one.add(result(0, driver="gpu.example.com"))
    one.prepare()


@case
def with_a_gpu_that_is_gone(one: Prepared) -> None:
    one.add(result(0, device="gpu-ffffffff"))
    one.prepare()


@case
def without_an_amount(one: Prepared) -> None:
    one.add(result(0, consumedCapacity={}))
    one.prepare()


@case
def with_another_uid(one: Prepared) -> None:
    one.add(result(0), uid="another")
    one.prepare()


@case
def of_a_gpu_in_use(one: Prepared) -> None:
    one.node.holdings(holding("p", unit_ids(0, Kind.MEMORY_SHARE, 0), GPU_MEM))
    one.preparer.publish(one.node.state)
    one.add(result(0))
    one.prepare()


@case
def of_a_node_in_another_mode(one: Prepared) -> None:
    offered_in_mode_share(one.node)
    one.preparer.publish(one.node.state)
    one.add(result(0), device_class="gpu-share.gpuagent.io")
    one.prepare()


@case
def of_a_gpu_in_mig_mode(one: Prepared) -> None:
    in_mig_mode(one.node)
    one.preparer.publish(one.node.state)
    one.add(result(1))
    one.prepare()


@case
def of_a_fenced_gpu(one: Prepared) -> None:
    one.node.state = replace(one.node.state, policy=replace(one.node.state.policy, fence_file="/etc/fence.json"))
    fenced(one.node)
    one.preparer.publish(one.node.state)
    one.add(result(1))
    one.prepare()


@case
def of_a_lost_gpu(one: Prepared) -> None:
    lost(one.node)
    one.preparer.publish(one.node.state)
    one.add(result(1))
    one.prepare()


@case
def before_anything_was_read(one: Prepared) -> None:
    one.add(result(0))
    one.preparer.publish(State(policy=in_force(Mode.DRA).state.policy))
    one.prepare()


@case
def that_cannot_be_read(_: Prepared) -> None:
    ClusterSync(Path("/no/such/kubeconfig"), "n", lambda _: None).claim("default", "c")


@case
def that_kubelet_gave_up(one: Prepared) -> None:
    one.add(result(0))
    one.prepare(is_wanted=lambda: False)


@case
def that_its_layer_can_never_isolate(one: Prepared) -> None:
    one.driver.never = SEVERAL_GPUS
    one.add(result(0), result(1))
    one.prepare()


@case
def of_several_pods_that_are_limited_each(one: Prepared) -> None:
    one.node.send(ev.LayerSeen(replace(one.layer, limits_pods=True), 0.0))
    pods = [claiming(name, "c") for name in ("p", "q")]
    for pod in pods:
        pod["metadata"]["namespace"] = "default"
    one.node.pods(*pods)
    one.preparer.publish(one.node.state)
    one.add(result(0))
    reserved = [{"resource": "pods", "name": name, "uid": f"uid-{name}"} for name in ("p", "q")]
    one.claims["default", "c"]["status"]["reservedFor"] = reserved
    one.prepare()


def on_a_node_that_limits_the_nearest_cgroup(one: Prepared, containers: list[list[int]]) -> None:
    """Two claims on one GPU, by the containers that use each."""
    one.node.pods(two_claims(one, containers=containers))
    one.add(result(1), name="d", uid=OTHER_UID)
    one.claims["default", "d"]["status"]["reservedFor"] = one.claims["default", "c"]["status"]["reservedFor"]
    one.preparer.publish(one.node.state)
    one.prepare()
    with running(one.directory / "limits", "misc") as node:
        node.start().until(lambda layer: layer.problem is None)
        one.driver.verify = node.driver.verify
        one.prepare("d", OTHER_UID)


@case
def of_a_share_that_some_containers_use_together(one: Prepared) -> None:
    on_a_node_that_limits_the_nearest_cgroup(one, [[0], [0], [1]])


@case
def beside_another_claim_on_the_same_gpu(one: Prepared) -> None:
    on_a_node_that_limits_the_nearest_cgroup(one, [[0], [1]])


@case
def without_its_layer(one: Prepared) -> None:
    one.node.send(ev.LayerSeen(replace(one.layer, problem="the daemon is dead"), 0.0))
    one.preparer.publish(one.node.state)
    one.add(result(0))
    one.prepare()


@case
def whose_files_cannot_be_written(one: Prepared) -> None:
    (one.directory / "state").write_text("in the way")
    one.add(result(0))
    one.prepare()


@case
def whose_files_cannot_be_removed(one: Prepared) -> None:
    one.add(result(0))
    one.prepare()
    (path,) = (one.directory / "cdi").iterdir()
    path.unlink()
    path.mkdir()
    one.preparer.unprepare(UID)


@case
def with_access_for_monitors_and_a_share(one: Prepared) -> None:
    one.add(result(0), result(1, adminAccess=True))
    one.prepare()


@case
def that_asks_for_bytes(one: Prepared) -> None:
    one.add(result(0))
    requests = one.claims["default", "c"]["spec"]["devices"]["requests"]
    requests[0]["exactly"]["capacity"] = {"requests": {"memory": "8"}}
    one.prepare()


@case
def that_asks_for_a_part_of_one_percent(one: Prepared) -> None:
    one.add(result(0))
    requests = one.claims["default", "c"]["spec"]["devices"]["requests"]
    requests[0]["exactly"]["capacity"] = {"requests": {"memory": "4Gi", "cores": "0.3"}}
    one.prepare()


@case
def that_asks_for_no_sharers(one: Prepared) -> None:
    one.add(result(0))
    requests = one.claims["default", "c"]["spec"]["devices"]["requests"]
    requests[0]["exactly"]["capacity"] = {"requests": {"memory": "4Gi", "sharers": "0"}}
    one.prepare()


@case
def with_a_configuration(one: Prepared) -> None:
    one.add(result(0))
    config = [{"opaque": {"driver": "gpu.gpuagent.io", "parameters": {}}}]
    one.claims["default", "c"]["spec"]["devices"]["config"] = config
    one.prepare()


@case
def of_less_than_a_unit(one: Prepared) -> None:
    one.add(result(0, memory="512Mi"))
    one.prepare()


@case
def of_more_memory_than_the_gpu_has(one: Prepared) -> None:
    one.add(result(0, memory="32Gi"))
    one.prepare()


@case
def of_more_compute_than_the_gpu_has(one: Prepared) -> None:
    one.add(result(0, cores="101"))
    one.prepare()


def beside(one: Prepared, first: Any, second: Any) -> None:  # noqa: ANN401 (JSON)
    """A claim with one result is prepared, and another one comes."""
    one.add(first)
    one.prepare()
    one.add(second, name="d", uid=OTHER_UID)
    one.preparer.prepare(OTHER_UID, "default", "d", until=0.0)


@case
def of_a_gpu_that_another_has_whole(one: Prepared) -> None:
    beside(one, result(0, "16Gi"), result(0))


@case
def for_a_whole_gpu_of_which_another_has_a_part(one: Prepared) -> None:
    beside(one, result(0), result(0, "16Gi"))


@case
def for_more_memory_than_others_leave(one: Prepared) -> None:
    beside(one, result(0, "9Gi"), result(0, "8Gi"))


@case
def for_more_compute_than_others_leave(one: Prepared) -> None:
    beside(one, result(0, cores="60"), result(0, cores="50"))


@case
def for_one_share_more_than_a_gpu_takes(one: Prepared) -> None:
    one.node.state = replace(one.node.state, policy=replace(one.node.state.policy, max_pods_per_gpu=1))
    one.preparer.publish(one.node.state)
    beside(one, result(0), result(0))
