"""Fencing by file: the whole agent, from the file that is saved to kubelet's list, the Node and the ConfigMap."""

import json
from collections.abc import Callable, Sequence

import pytest

from gpuagent.domain.sharing.mode import MODE_LABEL
from tests.contract.harness import ALWAYS, MEM, NODE, WHOLE, Isolating, Node, box, fetch, ids_on, wait_for

MakeNode = Callable[..., Node]

REPORT = f"unhealthy-gpu-{NODE}"


def save(one: Node, index: Sequence[str] = (), uuid: Sequence[str] = ()) -> None:
    """As an editor saves it: another file takes the name."""
    one.fence_file.parent.mkdir(exist_ok=True)
    new = one.fence_file.with_suffix(".new")
    new.write_text(json.dumps({"index": list(index), "uuid": list(uuid)}))
    new.replace(one.fence_file)


def reported(one: Node) -> str | None:
    """The unhealthy GPUs as a scheduler extender reads them."""
    found = one.server.config_map(REPORT)
    return None if found is None else found["data"]["gpus"]


@pytest.mark.parametrize(("mode", "each"), [("share", 24), ("core_mem", 24), ("topology", 1)])
def test_a_gpu_is_out_while_the_file_names_it(node: MakeNode, mode: str, each: int) -> None:
    """Saved: its ids are Unhealthy and no other; removed: all are Healthy. Schedulers are told both times."""
    one = node("1.36", box(2, 24), labels={MODE_LABEL: mode})
    one.run(Isolating())
    resource = WHOLE if mode == "topology" else MEM
    assert one.kubelet.wait(lambda: one.kubelet.allocatable(resource) == 2 * each)
    assert reported(one) is None
    save(one, index=["1"])
    assert one.kubelet.wait(lambda: one.kubelet.allocatable(resource) == each)
    ids = one.ids(resource)
    assert {i for i, health in ids.items() if health == "Unhealthy"} == set(ids_on(one.uuids[1], ids))
    assert one.kubelet.capacity(resource) == 2 * each
    assert one.server.wait(lambda: reported(one) == "1")
    assert one.event("GPUFenced", one.uuids[1])["type"] == "Normal"
    one.fence_file.unlink()
    assert one.kubelet.wait(lambda: one.kubelet.allocatable(resource) == 2 * each)
    assert one.server.wait(lambda: reported(one) is None)
    assert one.event("GPUUnfenced", one.uuids[1])["type"] == "Normal"


def test_the_first_list_and_every_page_show_a_fence_of_before_the_start(node: MakeNode) -> None:
    """No list ever offers the fenced GPU, not even the first one."""
    one = node("1.36", box(2, 24))
    save(one, uuid=[one.uuids[0]])
    agent = one.run(http_address=("127.0.0.1", 0))
    one.offers(mem=24)
    shown = [message.health for message in one.kubelet.lists(MEM)]
    assert {health[unit] for health in shown for unit in ids_on(one.uuids[0], health)} == {"Unhealthy"}
    gpus = json.loads(fetch(agent.http_port, "/status")[1])["gpus"]
    assert [gpu["cause"] for gpu in gpus] == ["fenced by file (its UUID)", None]
    metrics = fetch(agent.http_port, "/metrics")[1].splitlines()
    healthy = {
        line.partition('UUID="')[2][:40]: line[-3:] for line in metrics if line.startswith("gpuagent_gpu_healthy{")
    }
    assert healthy == {one.uuids[0]: "0.0", one.uuids[1]: "1.0"}


def test_a_bad_file_changes_no_list(node: MakeNode) -> None:
    """A half-written file and one with a stranger's name are told, and the fence stays as it was."""
    one = node("1.36", box(2, 24), labels={MODE_LABEL: "share"})
    one.run()
    save(one, index=["0"])
    one.offers(mem=24)
    count = len(one.kubelet.lists(MEM))
    one.fence_file.write_text('{"index": ["0", "1"')
    assert "stays in force" in one.event("FenceUnreadable", str(one.fence_file))["message"]
    save(one, index=["0", "17"])
    assert "index '17'" in one.event("FenceUnknown")["message"]
    assert len(one.kubelet.lists(MEM)) == count


def test_a_config_map_of_somebody_else_is_left_alone(node: MakeNode) -> None:
    """While no GPU is unhealthy here, one without the agent's labels stays."""
    one = node("1.36", box(2, 24), labels={MODE_LABEL: "share"})
    theirs = {"metadata": {"name": REPORT, "namespace": "kube-system"}, "data": {"gpus": "1"}}
    one.server.objects.create("configmaps", "kube-system", theirs)
    agent = one.run()
    one.offers(mem=48)
    kube = agent.kube
    assert kube is not None
    wait_for(lambda: one.server.requests["get configmaps"] and kube.flush(0))
    assert reported(one) == "1"


def test_who_runs_on_a_gpu_that_is_fenced_keeps_it(node: MakeNode) -> None:
    """Its units stay on the list, so that kubelet can restart the container."""
    one = node("1.36", box(1, 24))
    one.run()
    one.offers(mem=24)
    ids = sorted(one.ids(MEM))[:4]
    one.allocate(MEM, ids)
    save(one, index=["0"])
    one.offers()
    assert sorted(one.ids(MEM))[:4] == ids
    assert {resource: len(one.ids(resource)) for resource in ALWAYS}[MEM] == 24
