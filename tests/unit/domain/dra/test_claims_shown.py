"""People see claims where they see the devices of pods: who has which GPU, how much of it, and what is wrong."""

import json
from dataclasses import replace

import pytest

from gpuagent.domain import events as ev
from gpuagent.domain.dra.refused import refusal_event
from gpuagent.domain.dra.resource_slice import slice_spec
from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.reconcile.node_report import node_condition
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.isolation_layers import Layer
from gpuagent.domain.sharing.mode import DRA_DRIVER, GPU_MEM, Isolates, Mode
from gpuagent.domain.status.problems import problems, switch
from gpuagent.domain.status.status_page import status
from gpuagent.domain.usage.guarantee import shares
from gpuagent.isolation.need import isolation_needs
from gpuagent.pages.status_table import render
from tests.unit.domain.builders import NodeUnderTest, box, in_force, node_json, uuid
from tests.unit.domain.dra.prepared_claims import claiming, prepared

MEMORY, CORES = "gpu.gpuagent.io/memory", "gpu.gpuagent.io/cores"
GPUS = box(2, 16)


def node(*claims):
    """In mode dra, registered, with a slice, and with these claims prepared."""
    found = in_force(Mode.DRA, GPUS)
    found.send(ev.DraRegistered(None, found.now)).send(ev.ClaimsPrepared(claims, found.now))
    return published(found)


def published(found: NodeUnderTest) -> NodeUnderTest:
    return found.send(ev.SlicesSeen({"s": {"metadata": {}, "spec": slice_spec(found.state, "n")}}, found.now))


def page(found):
    return json.loads(json.dumps(status(found.state)))


def reasons(found):
    return [problem.reason for problem in problems(found.state)]


def test_the_status_has_the_claims_of_each_gpu_with_their_containers():
    found = node(prepared("small", GPUS[0], cores=30), prepared("pair", *GPUS, mib=8192))
    found.pods(claiming("a", "small"), claiming("b", "pair"))
    first, second = page(found)["gpus"]
    assert first["units"] == {MEMORY: 16, CORES: 100}
    assert first["held"] == {MEMORY: 12, CORES: 30}
    assert first["containers"] == [
        {"container": "ml/a[main]", "resource": MEMORY, "units": 4, "claim": "ml/small"},
        {"container": "ml/a[main]", "resource": CORES, "units": 30, "claim": "ml/small"},
        {"container": "ml/b[main]", "resource": MEMORY, "units": 8, "claim": "ml/pair"},
    ]
    assert second["held"] == {MEMORY: 8}


def test_a_claim_of_two_pods_counts_once():
    found = node(prepared("one", GPUS[0])).pods(claiming("a", "one", containers=2), claiming("b", "one"))
    shown = page(found)["gpus"][0]
    assert shown["held"] == {MEMORY: 4}
    assert [one["container"] for one in shown["containers"]] == ["ml/a[main]", "ml/a[main-1]", "ml/b[main]"]


def test_a_whole_gpu_has_all_of_its_memory_and_compute():
    shown = page(node(prepared("all", GPUS[1], mib=GPUS[1].memory_mib)))["gpus"][1]
    assert shown["held"] == {MEMORY: 16, CORES: 100}


def test_a_claim_whose_pod_was_not_seen_yet_is_named():
    shown = page(node(prepared("one", GPUS[0])))["gpus"][0]["containers"]
    assert [one["container"] for one in shown] == ["ml/[claim one]"]


def test_a_claim_of_an_extended_resource_is_that_of_its_container():
    pod = claiming("a", "x")
    pod["spec"]["resourceClaims"], pod["status"] = (
        [],
        {
            "phase": "Running",
            "extendedResourceClaimStatus": {
                "resourceClaimName": "made",
                "requestMappings": [{"containerName": "main"}],
            },
        },
    )
    shown = page(node(prepared("made", GPUS[0])).pods(pod))["gpus"][0]["containers"]
    assert [one["container"] for one in shown] == ["ml/a[main]"]


def test_each_container_with_gpus_in_its_limits_has_its_own():
    """The scheduler makes one claim for both containers, with a request for each."""
    requests = ["container-0-request-0", "container-1-request-0"]
    both = prepared("made", *GPUS, mib=GPUS[0].memory_mib)
    both = replace(both, gpus=tuple(replace(one, request=n) for one, n in zip(both.gpus, requests, strict=True)))
    pod = claiming("a", "x", containers=2)
    pod["spec"]["resourceClaims"] = []
    mappings = [{"containerName": name, "requestName": n} for name, n in zip(["main", "main-1"], requests, strict=True)]
    pod["status"] = {"extendedResourceClaimStatus": {"resourceClaimName": "made", "requestMappings": mappings}}
    found = node(both).pods(pod)
    seen = [[one["container"] for one in gpu["containers"]] for gpu in page(found)["gpus"]]
    assert seen == [["ml/a[main]"] * 2, ["ml/a[main-1]"] * 2]
    assert {(uuid, owner.container) for uuid, owner in shares(found.state)} == {
        (GPUS[0].uuid, "main"),
        (GPUS[1].uuid, "main-1"),
    }
    assert {(*one.ids, one.owner.container) for one in found.state.claim_holdings} == {
        (GPUS[0].uuid, "main"),
        (GPUS[1].uuid, "main-1"),
    }


def test_the_devices_of_the_slice_are_a_resource():
    found = node().send(ev.XidRaised(uuid(0), 79, 1.0))
    shown = page(published(found))["resources"]["gpu.gpuagent.io"]
    expected = {"healthy": 1, "unhealthy": 1, "stage": "connected", "registered": True, "problem": None}
    assert shown == expected
    assert "gpu.gpuagent.io" not in page(in_force(Mode.SHARE))["resources"]


def test_the_table_for_people_has_claims_and_the_driver():
    found = node(prepared("one", GPUS[0], cores=30)).pods(claiming("a", "one"))
    text = render({**page(found), "node": "n", "version": "0"})
    assert "4/16 GiB, 30/100 %" in text
    assert "ml/a[main] 4 GiB, 30 %" in text
    assert "gpu.gpuagent.io                 2        0          connected" in text


def test_a_switch_to_units_waits_for_the_containers_of_claims():
    found = node(prepared("one", GPUS[0])).pods(claiming("a", "one")).label("share").wait(3).holdings()
    assert switch(found.state).phase == "settling", "the slice is still there"
    found.send(ev.SlicesSeen({}, found.now)).wait(11)
    assert switch(found.state).phase == "waiting"
    assert reasons(found) == ["ModeSwitchWaiting"]
    assert "ml/a[main] (gpu.gpuagent.io)" in problems(found.state)[0].message
    assert found.offer(GPU_MEM) == {1: 16}
    found.send(ev.ClaimsPrepared((), found.now))
    assert switch(found.state).phase == "steady"


def test_pods_with_a_claim_get_to_know_what_becomes_of_their_gpu():
    found = node(prepared("one", GPUS[0])).pods(claiming("a", "one"))
    found.announcements.clear()
    found.send(ev.XidRaised(uuid(0), 79, 1.0))
    sent = [one for one in found.announcements if one.reason == "GPUUnhealthy" and one.pods]
    assert [one.pods for one in sent] == [(PodName("ml", "a"),)]


# -- problems ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (ev.DraRegistered("the name is taken", 1.0), "DRADriverNotRegistered"),
        (ev.SliceWritten("403", 1.0), "ResourceSliceNotWritten"),
    ],
)
def test_what_keeps_the_node_from_claims_is_its_condition(event, reason):
    found = node().send(event)
    assert reasons(found) == [reason]
    condition = node_condition(found.state)
    assert (condition["status"], condition["reason"]) == ("False", reason)
    assert "DRADriverNotRegistered" not in reasons(found.label("share").wait(1)), "no claim is left"


def test_slices_that_cannot_be_deleted_are_why_another_mode_gets_no_gpus():
    left = published(node()).label("share").wait(60).holdings()
    left.send(ev.SliceWritten("resource slice n: 403", left.now))
    assert left.offer(GPU_MEM) == {}
    (text,) = [p.message for p in problems(left.state) if p.reason == "ResourceSliceNotWritten"]
    assert "mode share gets its GPUs when the slices are deleted" in text
    assert node_condition(left.state)["status"] == "False"


def test_a_slice_that_was_never_read_is_worse_than_one_that_is_old():
    lost = ev.ApiUnavailable("watching resource slices: 403", 1.0, "slices")
    old, never = node().send(lost), in_force(Mode.DRA).send(lost)
    assert reasons(old) == reasons(never) == ["ResourceSlicesUnavailable"]
    assert [node_condition(one.state)["status"] for one in (old, never)] == ["True", "False"]
    assert reasons(published(old)) == []


def test_an_isolation_driver_that_does_not_work_is_named_with_what_waits_for_it():
    layer = Layer(
        driver="all",
        installed=True,
        isolates=frozenset(Isolates),
        modes=frozenset(Mode),
        problem="the daemon is dead",
        left_out={uuid(1): "too old"},
    )
    found = node().send(ev.LayerSeen(layer, 0.0))
    assert reasons(found) == ["GPUIsolationUnsupported", "IsolationDown"]
    assert page(found)["isolation"]["driver"] == "all"


def test_no_claim_gets_a_gpu_that_another_device_plugin_advertises():
    found = node().send(ev.NodeSeen({**node_json("dra"), "status": {"allocatable": {"nvidia.com/gpu": "2"}}}, 1.0))
    assert reasons(found) == ["ConflictingDevicePlugin"]
    assert page(published(found))["resources"]["gpu.gpuagent.io"]["unhealthy"] == 2
    found.label("dra").holdings()
    assert page(published(found))["resources"]["gpu.gpuagent.io"]["unhealthy"] == 0


# -- refusals ----------------------------------------------------------------------------------------------------


def test_a_refused_claim_is_an_event_on_the_pods_that_wait_for_it():
    running = claiming("running", "one")
    running["status"]["containerStatuses"] = [{"name": "main", "containerID": f"containerd://{1:064x}"}]
    found = node().pods(claiming("a", "one"), claiming("b", "another"), running)
    theirs = claiming("a", "one")
    theirs["metadata"] |= {"namespace": "blue", "uid": "uid-blue-a"}
    found.pods(claiming("a", "one"), claiming("b", "another"), running, theirs)
    event = refusal_event(found.state, "ml", "one", Refusal(Reason.STILL_HELD, "GPU 1 is in use"))
    assert (event.reason, event.warning, event.pods) == ("GPURefused", True, (PodName("ml", "a"),))
    assert event.message == "claim ml/one: GPU 1 is in use"
    assert refusal_event(None, "ml", "one", Refusal(Reason.NOT_READY, "later")).pods == ()


def test_two_requests_of_one_gpu_are_shown_by_the_containers_that_name_them():
    """One container names both, and has their sum; the GPU counts each once."""
    both = prepared("both", GPUS[0], GPUS[0], cores=10)
    both = replace(both, gpus=tuple(replace(gpu, request=name) for gpu, name in zip(both.gpus, "ab", strict=True)))
    pod = claiming("p", "both", containers=3)
    for container, request in zip(pod["spec"]["containers"], ("a", "b"), strict=False):
        container["resources"]["claims"][0]["request"] = request
    found = node(both).pods(pod)
    shown = page(found)["gpus"][0]
    assert shown["held"] == {MEMORY: 8, CORES: 20}
    memory = {one["container"]: one["units"] for one in shown["containers"] if one["resource"] == MEMORY}
    assert memory == {"ml/p[main]": 4, "ml/p[main-1]": 4, "ml/p[main-2]": 8}
    found_shares = {owner.container: share for (_, owner), share in shares(found.state).items()}
    gib = {name: (share.memory_bytes >> 30, round(share.compute, 2)) for name, share in found_shares.items()}
    assert gib == {"main": (4, 0.1), "main-1": (4, 0.1), "main-2": (8, 0.2)}
    assert len({place for share in found_shares.values() for place in share.of_claims}) == 2


def test_two_claims_of_a_container_are_one_share_for_mps():
    """A ceiling for the programs of a GPU has to let the container have both."""
    both = [prepared("one", GPUS[0], layer="mps"), prepared("two", GPUS[0], mib=2048, layer="mps")]
    need = isolation_needs(node(*both).pods(claiming("p", "one", "two")).state, ["mps"])["mps"]
    assert need.largest[GPUS[0].uuid].memory_mib == 6144


def test_a_monitor_is_no_use_of_a_gpu():
    """With adminAccess: it is in no sum, in no limit, and no switch waits for it."""
    watch = prepared("watch", *GPUS, mib=0)
    watch = replace(watch, gpus=tuple(replace(gpu, admin=True) for gpu in watch.gpus))
    found, idle = node(watch).pods(claiming("m", "watch")), node()
    shown = page(found)["gpus"]
    assert [(gpu["held"], gpu["containers"]) for gpu in shown] == [({}, [])] * 2
    assert [gpu["monitors"] for gpu in shown] == [["ml/m[main]"]] * 2
    assert "ml/m[main] monitor" in render({**page(found), "node": "n", "version": "0"})
    assert shares(found.state) == {}
    assert slice_spec(found.state, "n") == slice_spec(idle.state, "n")
    assert found.state.claims.held == frozenset()
    assert isolation_needs(found.state, ["all"])["all"].held == frozenset()
    found.label("share")
    assert switch(found.state).waiting_for == ()


def test_a_switch_waits_for_a_claim_in_each_namespace():
    """Two namespaces have a claim and a pod of equal names."""
    ours = prepared("one", GPUS[0])
    theirs = replace(prepared("one", GPUS[1]), namespace="blue", uid="uid-theirs")
    pod = claiming("a", "one")
    pod["metadata"] |= {"namespace": "blue", "uid": "uid-blue-a"}
    found = node(ours, theirs).pods(claiming("a", "one"), pod)
    containers = [[one["container"] for one in gpu["containers"]] for gpu in page(found)["gpus"]]
    assert containers == [["ml/a[main]"], ["blue/a[main]"]]
    found.label("share")
    waiting = {str(one.owner): one.ids for one in switch(found.state).waiting_for}
    assert waiting == {"ml/a[main]": {GPUS[0].uuid}, "blue/a[main]": {GPUS[1].uuid}}


def test_a_gpu_that_is_left_out_of_the_slice_is_shown_as_unhealthy():
    """The API server has feature gate DRADeviceTaints off."""
    found = node()
    found.send(ev.SliceProbed({"taints": [{"key": "k"}]}, {}, found.now))
    found.send(ev.XidRaised(GPUS[0].uuid, 79, found.now))
    shown = page(published(found))["resources"][DRA_DRIVER]
    assert (shown["healthy"], shown["unhealthy"]) == (1, 1)
