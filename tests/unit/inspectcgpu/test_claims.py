"""Nodes in mode dra: what their slices and claims say stands in the same tables as the amounts of other modes."""

import pytest
from hypothesis import given

from gpuagent.domain import events as ev
from gpuagent.domain.dra.device_taints import HELD_TAINT
from gpuagent.domain.dra.gpu_sets import set_name
from gpuagent.domain.dra.resource_slice import device_name, slice_spec, slice_specs
from gpuagent.domain.sharing.mode import GPU_CORE, GPU_MEM, GPU_WHOLE, Mode
from gpuagent.domain.sharing.units import MemoryUnit
from inspectcgpu.assemble.cluster_report import build
from inspectcgpu.cli import run
from inspectcgpu.fetch.agents import Answers
from inspectcgpu.fetch.cluster import OtherSources, facts
from inspectcgpu.read.claims import Claims, by_node, read_claim, read_slice
from inspectcgpu.read.gpu_node import read_node
from inspectcgpu.read.gpu_pod import read_pod
from inspectcgpu.show.details import details
from inspectcgpu.show.documents import document
from inspectcgpu.show.notes import notes
from inspectcgpu.show.summary import summary
from standin.api.server import ApiServer
from tests.unit.domain import hostile
from tests.unit.domain.builders import gpu, in_force, uuid
from tests.unit.inspectcgpu.sample_cluster import node_json, pod_json
from tests.unit.inspectcgpu.test_tables import is_like

GPUS = (gpu(0, 16), gpu(1, 40))


def slice_json(*events, node="n1", **policy):
    """As the agent writes it."""
    found = in_force(Mode.DRA, GPUS, **policy)
    for event in events:
        found.send(event)
    return {"spec": slice_spec(found.state, node)}


def claim_json(name, *shares, pods=(), driver="gpu.gpuagent.io", **more):
    """Shares as (index of the GPU, amount of memory, percent of compute)."""
    results = [
        {
            "driver": driver,
            "pool": "n1",
            "device": device_name(GPUS[index]),
            "consumedCapacity": {"memory": memory, "cores": str(cores), "sharers": "1"},
            **more,
        }
        for index, memory, cores in shares
    ]
    users = [{"resource": "pods", "name": pod, "uid": pod} for pod in pods]
    allocation = {"devices": {"results": results}}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "status": {"allocation": allocation, "reservedFor": users},
    }


def reported(*claims, pods=(), found=None, sets=()):
    listed = [one for one in map(read_slice, [*sets, found or slice_json()]) if one]
    read = Claims(by_node(listed), [one for one in map(read_claim, claims) if one])
    nodes = (read_node(node_json("n1", "dra", gpus=2, mib=16384)),)
    known = tuple(one for one in map(read_pod, pods) if one)
    return build(facts(nodes, known, OtherSources({}, Answers(), claims=read)))


def test_a_node_is_in_the_table_of_memory_and_compute():
    found = reported(
        claim_json("c", (0, "4Gi", 30), pods=["a"]),
        claim_json("two", (0, "8Gi", 0), (1, "8Gi", 0), pods=["b"]),
        claim_json("other", (0, "4Gi", 0), pods=["x"], driver="gpu.example.com"),
        claim_json("watching", (1, "1Gi", 0), pods=["y"], adminAccess=True),
    )
    is_like(
        "\n".join(summary(found)),
        """
        NAME  IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)  GPU0 Core(%)  GPU1 Core(%)  GPU Core(%)
        n1    10.0.0.1   12/16                  8/40                   20/56            30/100        0/100         30/200
        ---
        Allocated/Total GPU Memory In Cluster:
        20/56 (35%)
        Allocated/Total GPU Core In Cluster:
        30/200 (15%)
        """,
    )
    rows = [line.split() for line in details(found)]
    assert [row for row in rows if row[1:2] == ["default"]] == [
        ["a", "default", "4", "0", "30", "0", "-"],
        ["b", "default", "8", "8", "0", "0", "-"],
    ]
    assert notes(found) == []


def test_a_pod_says_that_its_gpus_are_those_of_a_claim():
    (node,) = document(reported(claim_json("c", (1, "4Gi", 30), pods=["a"])))["nodes"]
    (pod,) = node["pods"]
    assert pod["gpus"] == {GPU_MEM: [{"gpu": 1, "units": 4}], GPU_CORE: [{"gpu": 1, "units": 30}]}
    assert set(pod["toldBy"].values()) == {"claim"}
    assert (node["mode"], node["unit"], node["problem"]) == ("dra", "GiB", None)


def test_whole_gpus_also_those_of_limits_have_all_of_a_gpu():
    asking = pod_json("a", "n1", whole=1)
    (node,) = reported(claim_json("c", (1, "40Gi", 0), pods=["a"]), pods=[asking]).nodes
    (pod,) = node.pods
    assert pod.places == {GPU_MEM: {1: 40}, GPU_CORE: {1: 100}}
    assert (pod.pending, pod.pod.phase, GPU_WHOLE in node.amounts) == ({}, "Running", False)


def test_whole_gpus_of_an_api_server_that_shares_no_devices():
    """Feature gate DRAConsumableCapacity is off: the allocation has no amounts."""
    published = slice_json(ev.SliceProbed({"allowMultipleAllocations": True}, {}, 0.0))
    claim = claim_json("c", (1, "", 0), pods=["a"])
    del claim["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"]
    (node,) = reported(claim, found=published).nodes
    (pod,) = node.pods
    assert pod.places == {GPU_MEM: {1: 40}, GPU_CORE: {1: 100}}


@pytest.mark.parametrize("others", [(), (gpu(1, 40),)], ids=["alone", "before another"])
def test_a_gpu_that_does_not_report_its_memory_is_shown_by_its_compute(others):
    """As the GB10: one claim has it whole."""
    state = in_force(Mode.DRA, (gpu(0, 0), *others)).state
    unmeasured = {"spec": slice_spec(state, "n1")}
    claim = claim_json("c", (0, "0", 0), pods=["a"])
    del claim["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"]
    (node,) = document(reported(claim, found=unmeasured))["nodes"]
    (pod,) = node["pods"]
    assert pod["gpus"] == {GPU_CORE: [{"gpu": 0, "units": 100}]}
    assert node["gpus"][0]["amounts"][GPU_CORE] == {"allocated": 100, "total": 100}
    assert (node["unit"], node["problem"]) == ("GiB", None)


def test_a_set_of_gpus_has_all_of_each():
    slices = slice_specs(in_force(Mode.DRA, GPUS, gpu_sets=True).state, "n1")
    result = {"driver": "gpu.gpuagent.io", "pool": "n1", "device": set_name(one.uuid for one in GPUS)}
    claim = claim_json("c", pods=["a"])
    claim["status"]["allocation"]["devices"]["results"] = [result]
    found = reported(claim, sets=[{"spec": spec} for name, spec in slices.items() if name])
    assert found.nodes[0].pods[0].places == {GPU_MEM: {0: 16, 1: 40}, GPU_CORE: {0: 100, 1: 100}}


def test_a_claim_of_two_pods_counts_once_and_a_note_says_so():
    found = reported(claim_json("c", (0, "4Gi", 0), pods=["b", "a"]))
    (node,) = found.nodes
    assert node.amounts[GPU_MEM].allocated == 4
    text = "pod default/b: its claim default/c is also that of pod default/a, with which its GPUs are counted"
    assert notes(found) == [text]


def test_a_pod_with_two_claims_has_both():
    found = reported(claim_json("c", (0, "4Gi", 0), pods=["a"]), claim_json("d", (0, "2Gi", 0), pods=["a"]))
    assert [pod.places for pod in found.nodes[0].pods] == [{GPU_MEM: {0: 6}}]


def test_unhealthy_gpus_are_marked_and_those_of_another_mode_have_nothing():
    bad = slice_json(ev.XidRaised(uuid(0), 79, 1.0))
    found = reported(found=bad)
    assert [gpu.cause for gpu in found.nodes[0].gpus] == ["Unhealthy", ""]
    assert str(found.nodes[0].amounts[GPU_MEM]) == "0/40"
    held = slice_json()
    held["spec"]["devices"][1]["taints"] = [{"key": HELD_TAINT, "effect": "NoSchedule"}]
    assert [str(gpu.amounts[GPU_MEM]) for gpu in reported(found=held).nodes[0].gpus] == ["0/16", "0/0"]


def test_a_node_without_a_slice_says_that_nothing_is_advertised():
    assert notes(reported(found={"spec": {}})) == ["node n1: mode dra, and nothing is advertised"]


def test_the_unit_is_that_of_the_slice():
    found = reported(claim_json("c", (0, "1Gi", 0), pods=["a"]), found=slice_json(unit=MemoryUnit(256)))
    assert (found.nodes[0].unit, str(found.nodes[0].amounts[GPU_MEM])) == ("256MiB", "4/224")


@given(hostile.anything, hostile.anything)
def test_what_others_write_raises_nothing(one, other):
    for written in (
        {"spec": one, "status": other},
        {"spec": {"driver": "gpu.gpuagent.io", "nodeName": "n", "devices": one}},
    ):
        read_slice(written)
        read_claim(written)
    device = {"name": "d", "attributes": one, "capacity": other, "taints": one}
    read_slice({"spec": {"driver": "gpu.gpuagent.io", "nodeName": "n", "devices": [device]}})
    result = {"driver": "gpu.gpuagent.io", "pool": one, "device": other, "consumedCapacity": one}
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": other}
    read_claim({"metadata": one, "status": status})


def test_the_cluster_without_claims_is_shown_with_the_reason(capsys, tmp_path):
    with ApiServer("n0") as server:
        server.objects.create("nodes", "", node_json("n1", "dra"))
        server.deny("list", "resourceclaims")
        assert run(["--kubeconfig", str(server.write_kubeconfig(tmp_path / "config"))], {}) == 0
    assert "the slices and claims of nodes in mode dra cannot be read" in capsys.readouterr().out
