"""Why pods with claims wait: a sentence for each cause."""

import pytest

from tests.unit.gpuscheduler.core.explain.cluster_objects import (
    DRIVER,
    ISOLATED,
    SHARE,
    WHOLE,
    claim,
    classes,
    gpu,
    held,
    node,
    pod,
    request,
    share_gpus,
    slice_of,
    why,
)

TAINT = {"key": "team", "value": "b", "effect": "NoSchedule"}
ATTRIBUTE = f'device.attributes["{DRIVER}"]'
TWO_NODES = {
    "nodes": [node("node-1"), node("node-3")],
    "slices": [slice_of("node-1", gpu(0), gpu(1)), slice_of("node-3", gpu(0), gpu(2))],
}


def of_request(*requests, constraints=(), claims=(), **given):
    """The sentence about a pod with one claim."""
    wanted = claim("mine", *requests, constraints=constraints)
    return why(pod("mine"), claims=[wanted, *claims], **({**TWO_NODES, **given}))


def shares(*memory):
    """Claims of these amounts on GPUs 0 and 1 of node-1, and GPUs 0 and 2 of node-3."""
    places = (("node-1", "gpu-0"), ("node-1", "gpu-1"), ("node-3", "gpu-0"), ("node-3", "gpu-2"))
    found = []
    for number, (amount, (where, device)) in enumerate(zip(memory, places, strict=True)):
        if amount:
            found.append(held(f"other-{number}", where, device, memory=amount, namespace="team-b"))
    return found


def test_more_than_is_free_says_where_most_is():
    slices = [slice_of("node-1", gpu(0, taint="unhealthy", value="xid-79"), gpu(1)), TWO_NODES["slices"][1]]
    text = of_request(request(memory="30Gi"), claims=shares("", "60Gi", "70Gi", "68Gi"), slices=slices)
    assert text == "wants 30Gi on one GPU: most free is 20Gi, on node-1 GPU 1; 1 GPU is unhealthy (xid-79)"


def test_gpus_that_are_held_whole_are_counted():
    text = of_request(request(memory="30Gi"), claims=shares("80Gi", "80Gi", "70Gi", "80Gi"))
    assert text == "wants 30Gi on one GPU: most free is 10Gi, on node-3 GPU 0; 3 GPUs are held whole"


def test_a_whole_gpu_needs_one_without_shares():
    text = of_request(request(WHOLE), claims=shares("1Gi", "80Gi", "70Gi", "80Gi"))
    assert text == "wants a whole GPU: none is free: 4 GPUs are in use"


def test_compute_that_is_short_where_memory_is_not():
    claims = [held(f"c{n}", "node-1", f"gpu-{n}", memory="8Gi", cores="80") for n in range(2)]
    slices = TWO_NODES["slices"][:1]
    text = of_request(request("gpu-core.gpuagent.io", memory="30Gi", cores="50"), claims=claims, slices=slices)
    assert text == (
        "wants 30Gi and 50 % of compute on one GPU: where enough memory is free, most free is 20 % of compute, "
        "on node-1 GPU 0"
    )


@pytest.mark.parametrize("device_class", [SHARE, ISOLATED, "gpu-core.gpuagent.io"])
def test_gpus_that_an_api_server_does_not_share(device_class):
    """Feature gate DRAConsumableCapacity is off."""
    alone = gpu(0)
    del alone["allowMultipleAllocations"], alone["capacity"]["sharers"]
    text = of_request(request(device_class, memory="1Gi"), slices=[slice_of("node-1", alone)])
    assert text == "wants 1Gi on one GPU: of 1 GPU none can be shared: a whole one is of class gpu.gpuagent.io"


def test_a_gpu_has_its_most_sharers():
    claims = [held("c", "node-1", "gpu-0", memory="1Gi")]
    slices = [slice_of("node-1", gpu(0, sharers=1))]
    text = of_request(request(memory="1Gi"), claims=claims, slices=slices)
    assert text == (
        "wants 1Gi on one GPU: where enough memory is free, the node takes no further claim on that GPU at the moment, "
        "such as node-1 GPU 0"
    )


def test_more_memory_than_any_gpu_has():
    text = of_request(request(memory="100Gi"))
    assert text == "wants 100Gi on one GPU: the largest GPU has 80Gi, such as node-1 GPU 0"


def test_more_gpus_than_any_node_has():
    text = of_request(request(WHOLE, count=4))
    assert text == "wants 4 whole GPUs on one node: no node where it may be has more than 2 such GPUs, as node-1 has"


def test_more_gpus_than_are_free_on_one_node():
    text = of_request(request(WHOLE, count=2), claims=shares("8Gi", "", "", "8Gi"))
    assert text == "wants 2 whole GPUs on one node: a node has at most 1 unused GPU, such as node-1"


def test_amounts_on_several_gpus():
    text = of_request(request(count=2, memory="30Gi"), claims=shares("60Gi", "", "60Gi", "60Gi"))
    assert text == (
        "wants 30Gi on each of 2 GPUs of one node: a node has at most 1 GPU with as much free, such as node-1"
    )


@pytest.mark.parametrize(
    ("taint", "words"),
    [
        ("unhealthy", "2 GPUs are unhealthy"),
        ("fenced", "2 GPUs are fenced by their operator"),
        ("held", "2 GPUs are held by pods of another mode"),
        ("settling", "2 GPUs settle after a fault"),
        ("unreadable", "2 GPUs do not answer"),
        ("other", "2 GPUs have taint gpu.gpuagent.io/other"),
    ],
)
def test_all_gpus_are_out(taint, words):
    slices = [slice_of("node-1", gpu(0, taint=taint), gpu(1, taint=taint))]
    text = of_request(request(memory="30Gi"), slices=slices)
    assert text == f"wants 30Gi on one GPU: none can be used now: {words}"


def test_too_few_gpus_of_a_node_can_be_used():
    slices = [slice_of("node-1", gpu(0, taint="fenced"), gpu(1))]
    text = of_request(request(WHOLE, count=2), slices=slices)
    assert text == (
        "wants 2 whole GPUs on one node: a node has at most 1 usable GPU, such as node-1: 1 GPU is fenced by its operator"
    )


def test_a_class_that_there_is_not():
    text = of_request(request("gpu-shared.gpuagent.io", memory="8Gi"))
    assert text == (
        "wants DeviceClass gpu-shared.gpuagent.io, which the cluster does not have; did you mean gpu-share.gpuagent.io?"
    )


@pytest.mark.parametrize("names", [(SHARE, "gpu-shared.gpuagent.io"), ("gpu-shared.gpuagent.io", SHARE)])
def test_each_alternative_needs_its_class(names):
    """kube-scheduler 1.36.3 passes none over: dynamicresources.go, PreFilter and validateDeviceClass."""
    alternatives = [{"name": f"a{n}", "deviceClassName": name} for n, name in enumerate(names)]
    text = of_request({"name": "gpu", "firstAvailable": alternatives})
    assert text.startswith("wants DeviceClass gpu-shared.gpuagent.io, which the cluster does not have"), text


def test_a_capacity_that_no_gpu_has():
    text = of_request(request(mem="8Gi", memory="8Gi"))
    assert text.endswith("capacity gpu.gpuagent.io/mem is on no GPU; did you mean memory?")
    assert of_request(request(zzz="8Gi")) == (
        "wants 8Gi of zzz on one GPU: capacity gpu.gpuagent.io/zzz is on no GPU; there are cores, memory, sharers"
    )


def test_a_capacity_with_the_domain_of_its_driver_is_another_one():
    """kube-scheduler compares the names as they are written, so such a claim waits for ever."""
    text = of_request(request(**{"gpu.gpuagent.io/memory": "8Gi"}))
    assert text == "wants 8Gi on one GPU: capacity gpu.gpuagent.io/memory is on no GPU; did you mean memory?"


@pytest.mark.parametrize(
    ("cel", "end"),
    [
        (f'{ATTRIBUTE}.productname == "A"', f"attribute {DRIVER}/productname is on no GPU; did you mean productName?"),
        ('device.attributes["gpu.gpuagent.com"].minor == 0', "did you mean gpu.gpuagent.io?"),
        (
            f'device.capacity["{DRIVER}"].Memory.compareTo(quantity("8Gi")) > 0',
            f"capacity {DRIVER}/Memory is on no GPU; did you mean memory?",
        ),
    ],
)
def test_a_name_in_a_selector_that_no_gpu_has(cel, end):
    text = of_request(request(cel=cel, memory="8Gi"))
    assert text.endswith(end), text


def test_a_selector_that_no_gpu_meets_shows_what_they_have():
    text = of_request(request(cel=f'{ATTRIBUTE}.productName == "NVIDIA H100"', memory="8Gi"))
    assert text == (
        'wants 8Gi on one GPU: of 4 GPUs none meets device.attributes["gpu.gpuagent.io"].productName == "NVIDIA H100": '
        "productName is NVIDIA A100-SXM4-80GB"
    )


def test_a_class_whose_isolation_no_gpu_has():
    slices = [slice_of("node-1", gpu(0, memoryIsolated=False))]
    text = of_request(request(ISOLATED, memory="8Gi"), slices=slices)
    assert text == (
        'wants 8Gi on one GPU: of 1 GPU none meets device.attributes["gpu.gpuagent.io"].memoryIsolated of class '
        "gpu-isolated.gpuagent.io: memoryIsolated is false"
    )


def test_nodes_that_the_pod_must_not_be_on():
    nodes = [node("node-1", taints=[TAINT]), node("node-2"), node("node-3", unschedulable=True)]
    wanted = claim("mine", request(memory="30Gi"))
    text = why(pod("mine"), claims=[wanted], nodes=nodes, slices=TWO_NODES["slices"])
    assert text == (
        "wants 30Gi on one GPU: 4 GPUs have as much, and the pod may not be on the nodes: "
        "1 node(s) had taints that it does not tolerate (node-1); 1 node(s) were unschedulable (node-3)"
    )
    text = why(pod("mine", nodeSelector={"zone": "b"}), claims=[wanted], **TWO_NODES)
    assert text.endswith("2 node(s) did not match its node selector or node affinity (node-1, node-3)")


def test_devices_that_must_match():
    constraint = {"matchAttribute": f"{DRIVER}/nvlinkDomain", "requests": ["gpu"]}
    text = of_request(request(WHOLE, count=2), constraints=[constraint])
    assert text == (
        "wants 2 GPUs with the same gpu.gpuagent.io/nvlinkDomain: no node has that many with one value free; with any "
        "value there are enough on node-1, node-3"
    )
    constraint = {"matchAttribute": f"{DRIVER}/nvlinkdomain"}
    text = of_request(request(WHOLE, count=2), constraints=[constraint])
    assert text.endswith("attribute gpu.gpuagent.io/nvlinkdomain is on no GPU; did you mean nvlinkDomain?")


def test_the_constraint_that_no_node_meets_is_told():
    """Also if others of the claim, or of another claim, come first."""
    product, domain = ({"matchAttribute": f"{DRIVER}/{name}"} for name in ("productName", "nvlinkDomain"))
    told = "wants 2 GPUs with the same gpu.gpuagent.io/nvlinkDomain: no node has that many with one value free"
    assert of_request(request(WHOLE, count=2), constraints=[product, domain]).startswith(told)
    first = claim("first", request(memory="1Gi"), constraints=[product])
    second = claim("second", request(count=2, memory="1Gi"), constraints=[domain])
    assert why(pod("first", "second"), claims=[first, second], **TWO_NODES).startswith(told)


def test_constraints_that_no_node_meets_together():
    """Each pair of GPUs has one value of at most one of the two attributes."""
    devices = [gpu(0, a="x", b="u"), gpu(1, a="x", b="v"), gpu(2, a="y", b="v")]
    constraints = [{"matchAttribute": f"{DRIVER}/{name}"} for name in "ab"]
    text = of_request(request(WHOLE, count=2), constraints=constraints, slices=[slice_of("node-1", *devices)])
    assert text.startswith("wants 2 GPUs with the same gpu.gpuagent.io/a and gpu.gpuagent.io/b: no node has that many")


def test_requests_that_fit_only_by_themselves():
    slices = [slice_of("node-1", gpu(0)), slice_of("node-3", gpu(0))]
    requests = (request(name="a", memory="50Gi"), request(name="b", memory="50Gi"))
    assert of_request(*requests, slices=slices) == (
        "wants 2 requests on one node, and each fits only by itself: a on node-1, node-3 and b on node-1, node-3"
    )


def test_alternatives_are_told_both():
    first = {"name": "two", "deviceClassName": WHOLE, "count": 8}
    second = {"name": "one", "deviceClassName": SHARE, "capacity": {"requests": {"memory": "100Gi"}}}
    text = of_request({"name": "gpu", "firstAvailable": [first, second]})
    assert text == (
        "wants 8 whole GPUs on one node: no node where it may be has more than 2 such GPUs, as node-1 has; "
        "or else it wants 100Gi on one GPU: the largest GPU has 80Gi, such as node-1 GPU 0"
    )


def test_no_node_publishes_gpus_for_claims():
    nodes = [node("node-1", mode="share"), node("node-2", mode="share"), node("node-3", mode="topology")]
    text = of_request(request(memory="30Gi"), nodes=nodes, slices=())
    assert text == (
        "wants 30Gi on one GPU: no node publishes GPUs for claims, because none is in mode dra: "
        "2 nodes are in mode share, 1 node is in mode topology"
    )
    text = of_request(request(memory="30Gi"), nodes=[node("node-1")], slices=())
    assert text.endswith("no node publishes GPUs for claims, and 1 node is in mode dra: see the condition "
                         "GPUAgentReady there")  # fmt: skip


def test_a_claim_or_a_template_that_there_is_not():
    assert why(pod("mina"), claims=[claim("mine", request())], **TWO_NODES) == (
        "wants ResourceClaim mina, which namespace default does not have; did you mean mine?"
    )
    assert why(pod(template="share-9g"), templates=["share-8g"], **TWO_NODES) == (
        "wants ResourceClaimTemplate share-9g, which namespace default does not have; did you mean share-8g?"
    )
    assert "not created yet" in why(pod(template="share-8g"), templates=["share-8g"], **TWO_NODES)
    made = claim("chat-x", request(memory="100Gi"))
    text = why(pod(template="share-8g", made="chat-x"), templates=["share-8g"], claims=[made], **TWO_NODES)
    assert text.startswith("wants 100Gi on one GPU")


def test_a_claim_that_is_being_deleted_takes_no_further_pod():
    """kube-scheduler gives it to none, also while other pods use it: dynamicresources.go, foreachPodResourceClaim."""
    unused, used = claim("mine", request()), held("mine", "node-1", "gpu-0", users=["first"])
    for each in (unused, used):
        each["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        text = why(pod("mine"), claims=[each], **TWO_NODES)
        assert text == "wants ResourceClaim mine, which is being deleted"


def test_a_claim_that_another_pod_uses_where_this_one_may_not_be():
    claims = [held("mine", "node-3", "gpu-0", users=["first"])]
    nodes = [node("node-1"), node("node-3", taints=[TAINT])]
    assert why(pod("mine"), claims=claims, nodes=nodes, slices=TWO_NODES["slices"]) == (
        "its claim mine has devices on node node-3, where first uses it, and the pod may not be there: 1 node(s) had "
        "taints that it does not tolerate"
    )


def test_claims_on_different_nodes():
    claims = [held("a", "node-1", "gpu-0"), held("b", "node-3", "gpu-0")]
    assert why(pod("a", "b"), claims=claims, **TWO_NODES) == (
        "its claims have devices on different nodes: a on node-1 and b on node-3"
    )


def test_a_claim_binds_the_others_to_its_node():
    claims = [held("a", "node-1", "gpu-0"), claim("b", request(WHOLE, count=2))]
    assert why(pod("a", "b"), claims=claims, **TWO_NODES) == (
        "wants 2 whole GPUs on one node: a node has at most 1 unused GPU, such as node-1; "
        "2 GPUs have as much free where the pod may not be (node-3)"
    )


def test_what_fits_by_now_is_said_with_the_schedulers_words():
    assert of_request(request(memory="30Gi")) == (
        "GPUs are free for it on node-1, node-3, so something else keeps it, or it is tried again soon: "
        "0/1 nodes are available"
    )


@pytest.mark.parametrize("requests", [(), (request("plain"),), (request("plain", cel="true"),)])
def test_a_cluster_without_devices_has_a_sentence_for_classes_without_selectors(requests):
    plain = {"metadata": {"name": "plain"}, "spec": {}}
    text = of_request(*requests, slices=[], device_classes=[plain], claims=[])
    # The claim concerns no device of ours.
    assert text == "0/1 nodes are available"


def test_linked_gpus_are_not_free_while_a_part_is_used():
    counters = {"name": "gpus", "counters": {f"gpu-{n}": {"value": "1"} for n in range(2)}}
    consumes = [{"counterSet": "gpus", "counters": {f"gpu-{n}": {"value": "1"} for n in range(2)}}]
    pair = gpu(-1, type="gpu-set") | {"name": "set-2", "consumesCounters": consumes, "allowMultipleAllocations": False}
    singles = []
    for n in range(2):
        one = [{"counterSet": "gpus", "counters": {f"gpu-{n}": {"value": "1"}}}]
        singles.append(gpu(n) | {"consumesCounters": one})
    first = slice_of("node-1", *singles, pair, count=2)
    second = slice_of("node-1", count=2)
    second["metadata"]["name"] = "counters"
    second["spec"]["sharedCounters"] = [counters]
    given = {"nodes": [node("node-1")], "slices": [first, second]}
    is_set = request(WHOLE, cel=f'{ATTRIBUTE}.type == "gpu-set"')
    # The class takes GPUs alone, so another one is made for sets.
    sets = {"metadata": {"name": "gpu-set.gpuagent.io"}, "spec": {"selectors": []}}
    is_set["exactly"]["deviceClassName"] = "gpu-set.gpuagent.io"
    used = held("other", "node-1", "gpu-1", memory="8Gi")
    text = why(pod("mine"), claims=[claim("mine", is_set), used], device_classes=[sets], **given)
    assert text == "wants a GPU set: none is free: 1 GPU set is in use with linked ones"


def test_a_monitor_needs_nothing_free():
    asked = request(WHOLE)
    asked["exactly"]["adminAccess"] = True
    text = of_request(asked, claims=shares("80Gi", "80Gi", "80Gi", "80Gi"))
    assert text == (
        "GPUs may be free for it on node-1, node-3; not checked here: what adminAccess needs; "
        "kube-scheduler says: 0/1 nodes are available"
    )


MATCHES = f'{ATTRIBUTE}.productName.matches("H100.*")'
ALL = request(WHOLE, name="all")
ALL["exactly"] = {"deviceClassName": WHOLE, "allocationMode": "All"}
DISTINCT = [{"distinctAttribute": f"{DRIVER}/productName"}]


@pytest.mark.parametrize(
    "requests, constraints, unchecked",
    [
        ([request(memory="8Gi", cel=MATCHES)], [], MATCHES),
        ([request(memory="8Gi", cel=f"{MATCHES} || {ATTRIBUTE}.minor == 7")], [], f"{MATCHES} || {ATTRIBUTE}.minor"),
        ([request(memory="8Gi", count=2)], DISTINCT, "constraint distinctAttribute"),
    ],
)
def test_what_is_not_checked_here_is_not_said_to_be_free(requests, constraints, unchecked):
    text = of_request(*requests, constraints=constraints)
    assert "GPUs are free" not in text
    assert text.startswith(f"GPUs may be free for it on node-1, node-3; not checked here: {unchecked[:70]}")
    assert text.endswith("; kube-scheduler says: 0/1 nodes are available")


def test_all_devices_are_given_if_none_of_them_refuses():
    assert of_request(ALL).startswith("GPUs are free for it on node-1, node-3, so")
    # kube-scheduler leaves out those that have too little.
    assert of_request(ALL, claims=shares("8Gi", "", "80Gi", "1Gi")).startswith("GPUs are free for it on node-1, so")
    assert of_request(ALL, claims=shares("8Gi", "8Gi", "8Gi", "8Gi")) == (
        "wants all whole GPUs of a node that match: none is free: 4 GPUs are in use"
    )
    # One with a taint keeps the request from the node.
    slices = [slice_of("node-1", gpu(0, taint="fenced"), gpu(1))]
    assert of_request(ALL, slices=slices) == (
        "wants all whole GPUs of a node that match: a node has at most 1 usable GPU, such as node-1: "
        "1 GPU is fenced by its operator"
    )
    assert of_request(ALL, slices=slices, claims=[held("other", "node-1", "gpu-0")]).startswith("GPUs are free for it")


@pytest.mark.parametrize("requests", [(ALL, request(memory="4Gi")), (request(memory="4Gi"), ALL)])
def test_all_devices_leave_nothing_to_other_requests(requests):
    text = of_request(*requests)
    assert text.startswith("wants 2 requests on one node, and each fits only by itself: "), text


def test_all_devices_have_to_match():
    constraint = {"matchAttribute": f"{DRIVER}/nvlinkDomain"}
    assert of_request(ALL, constraints=[constraint]) == (
        "wants all matching GPUs of a node with the same gpu.gpuagent.io/nvlinkDomain: no node has one value for all; "
        "with any value there are enough on node-1, node-3"
    )
    same = {"matchAttribute": f"{DRIVER}/productName"}
    assert of_request(ALL, constraints=[same]).startswith("GPUs are free for it on node-1, node-3, so")


def test_a_tolerated_taint_counts_no_longer():
    slices = [slice_of("node-1", gpu(0, taint="settling"))]
    asked = request(memory="8Gi")
    asked["exactly"]["tolerations"] = [{"key": f"{DRIVER}/settling", "operator": "Exists"}]
    assert of_request(asked, slices=slices).startswith("GPUs are free for it on node-1")


def test_old_and_incomplete_slices_count_no_more_than_for_kube_scheduler():
    old = slice_of("node-1", gpu(0, gib=90), generation=1)
    new = slice_of("node-1", gpu(0, gib=40), generation=2)
    half = slice_of("node-3", gpu(0, gib=100), count=2)
    text = of_request(request(memory="50Gi"), slices=[old, new, half])
    assert text == "wants 50Gi on one GPU: the largest GPU has 40Gi, such as node-1 GPU 0"


def test_claims_for_other_drivers_are_left_to_kube_scheduler():
    other = {"metadata": {"name": "nic"}, "spec": {"selectors": [{"cel": {"expression": 'device.driver == "nic"'}}]}}
    text = why(pod("mine"), claims=[claim("mine", request("nic"))], device_classes=[other], **TWO_NODES)
    assert text == "0/1 nodes are available"


NIC = {"metadata": {"name": "nic"}, "spec": {"selectors": [{"cel": {"expression": 'device.driver == "nic"'}}]}}


def test_a_request_for_a_device_of_another_driver():
    asked = (request(memory="8Gi"), request("nic", name="nic"))
    text = of_request(*asked, device_classes=[*classes(), NIC])
    assert text == 'wants a device: of 4 devices none meets device.driver == "nic" of class nic'


def test_devices_of_other_drivers_that_are_not_of_one_node_are_not_checked():
    in_network = slice_of("fabric", {"name": "nic-0"}, driver="nic")
    del in_network["spec"]["nodeName"]
    in_network["spec"]["allNodes"] = True
    given = {"device_classes": [*classes(), NIC], "slices": [*TWO_NODES["slices"], in_network]}
    text = of_request(request(memory="8Gi"), request("nic", name="nic"), **given)
    assert text.startswith(
        "GPUs may be free for it on node-1, node-3; not checked here: devices of nic that are not of one node"
    )
    # A request for GPUs gets none of these.
    assert of_request(request(memory="100Gi"), **given) == (
        "wants 100Gi on one GPU: the largest GPU has 80Gi, such as node-1 GPU 0"
    )


def test_pods_of_jobs_are_explained_by_their_claims():
    """kube-scheduler places them one by one, so they are not a job."""
    labels = {"gpu-topology": "train", "gpu-topology-replica": "2"}
    given = {**TWO_NODES, "claims": [claim("mine", request(memory="100Gi"))]}
    assert why(pod("mine", labels=labels), **given).startswith("wants 100Gi on one GPU: the largest GPU has 80Gi")
    untried = why(pod("mine", labels=labels, said=""), **given)
    assert untried.startswith("wants 100Gi on one GPU") and "has not tried it yet" in untried
    assert why(pod("mine", labels=labels, gates=["gpuagent.io/job"], said=""), **given) == (
        "job train: gate gpuagent.io/job keeps its pods until all of them are there"
    )


def test_limits_that_a_class_serves():
    given = {
        "nodes": [node("node-1"), node("node-2", mode="share", gpus=share_gpus(8))],
        "slices": [slice_of("node-1", gpu(0))],
    }
    text = why(pod(limits={"aliyun.com/gpu": "4"}), device_classes=classes("aliyun.com/gpu"), **given)
    assert text == (
        "wants 4 whole GPUs on one node: 1 node(s) give no whole GPUs: their mode is share; on nodes in mode dra it "
        "wants 4 whole GPUs on one node: no node where it may be has more than 1 such GPU, as node-1 has"
    )


BY_CLASS = "deviceclass.resource.kubernetes.io/gpu.gpuagent.io"


@pytest.mark.parametrize("resource", [BY_CLASS, "example.com/gpu"])
def test_limits_that_only_a_class_serves(resource):
    device_classes = classes("example.com/gpu")
    nodes = [*TWO_NODES["nodes"], node("node-2", mode="topology")]
    text = why(pod(limits={resource: "4"}), device_classes=device_classes, nodes=nodes, slices=TWO_NODES["slices"])
    assert text == "wants 4 whole GPUs on one node: no node where it may be has more than 2 such GPUs, as node-1 has"
    nic = "deviceclass.resource.kubernetes.io/nic"
    others = why(pod(limits={nic: "4"}), device_classes=[NIC], nodes=nodes, slices=TWO_NODES["slices"])
    assert others == "0/1 nodes are available"
    missing = why(pod(limits={BY_CLASS: "4"}), device_classes=[NIC], nodes=nodes, slices=TWO_NODES["slices"])
    assert missing.startswith("wants DeviceClass gpu.gpuagent.io, which the cluster does not have")


@pytest.mark.parametrize("resource", [BY_CLASS, "aliyun.com/gpu"])
def test_limits_and_claims_have_to_fit_together(resource):
    given = {**TWO_NODES, "device_classes": classes("aliyun.com/gpu")}
    for count, told in ((1, "GPUs are free for it on node-1, node-3"), (2, "wants 2 requests on one node, and each")):
        text = why(pod("mine", limits={resource: "1"}), claims=[claim("mine", request(WHOLE, count=count))], **given)
        assert text.startswith(told), text


def test_containers_that_end_before_others_start_share_what_limits_give():
    def asking(name, count, **fields):
        return {"name": name, "resources": {"limits": {BY_CLASS: str(count)}}, **fields}

    first = asking("first", 2)
    sidecar = asking("sidecar", 1, restartPolicy="Always")
    fitting = pod(initContainers=[first, asking("second", 1)], containers=[asking("main", 1), asking("b", 1)])
    assert why(fitting, **TWO_NODES).startswith("GPUs are free for it on node-1, node-3")
    too_many = pod(initContainers=[first, sidecar], containers=[asking("main", 1), asking("b", 1)])
    assert why(too_many, **TWO_NODES).startswith("wants 3 whole GPUs on one node")


@pytest.mark.parametrize("missing", ["published", "claims", "classes", "sites"])
def test_what_cannot_be_read_is_said_or_left_out(missing):
    wanted = claim("mine", request(memory="100Gi"))
    text = why(pod("mine"), **{**TWO_NODES, "claims": [wanted], "read": {missing: None}})
    expected = {
        "published": "wants 100Gi on one GPU: which GPUs there are is not known here",
        "claims": "its claim mine could not be read",
    }
    assert text == expected.get(missing, "wants 100Gi on one GPU: the largest GPU has 80Gi, such as node-1 GPU 0")


def test_claims_of_other_namespaces_that_cannot_be_read_are_said():
    text = of_request(
        request(memory="30Gi"), claims=shares("60Gi", "60Gi", "60Gi", "60Gi"), read={"has_all_claims": False}
    )
    assert text.endswith("; what claims of other namespaces have is not known here")
