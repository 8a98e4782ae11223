"""A pod has no reason to wait exactly where the allocator, which is held against kube-scheduler's own, finds devices."""

from hypothesis import given
from hypothesis import strategies as st

from standin.scheduler.allocator import Devices
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
    slice_of,
    why,
)

A = f'device.attributes["{DRIVER}"]'
CLASSES = {found["metadata"]["name"]: found for found in classes()}
memory = st.sampled_from(["1500Mi", "8Gi", "30Gi", "41Gi", "80Gi", "81Gi"])
selector = st.sampled_from(["", f"{A}.minor < 2", f"{A}.minor == 9", f'{A}.island == "a" || {A}.minor in [0, 2]'])
gpus = st.builds(
    gpu,
    st.just(0),
    gib=st.sampled_from([40, 80]),
    taint=st.sampled_from(["", "", "", "unhealthy", "settling"]),
    sharers=st.sampled_from([1, 2, 20]),
    island=st.sampled_from(["a", "b"]),
    memoryIsolated=st.booleans(),
)


@st.composite
def requests(draw, name):
    """A request with this name: exact, or with two alternatives."""
    first = draw(exact_requests(name))
    if draw(st.integers(0, 2)):
        return first
    second = draw(exact_requests(name))
    return {"name": name, "firstAvailable": [{"name": "x", **first["exactly"]}, {"name": "y", **second["exactly"]}]}


@st.composite
def exact_requests(draw, name):
    amounts = {}
    device_class = draw(st.sampled_from([WHOLE, SHARE, ISOLATED]))
    if device_class != WHOLE:
        amounts["memory"] = draw(memory)
        if draw(st.booleans()):
            amounts["cores"] = draw(st.sampled_from(["7", "50", "100"]))
    made = request(device_class, name=name, count=draw(st.integers(1, 3)), cel=draw(selector), **amounts)
    if draw(st.integers(0, 3)) == 0:
        made["exactly"]["tolerations"] = [{"key": f"{DRIVER}/settling", "operator": "Exists", "effect": "NoSchedule"}]
    return made


@st.composite
def clusters(draw):
    """Slices of two nodes, claims that have some of their devices, and a claim that wants some."""
    slices = []
    others = []
    for name in ("node-1", "node-2"):
        devices = draw(st.lists(gpus, min_size=1, max_size=3))
        for minor, device in enumerate(devices):
            device["name"] = f"gpu-{minor}"
            device["attributes"]["minor"] = {"int": minor}
            if draw(st.booleans()):
                used = draw(st.sampled_from(["10Gi", "40Gi"]))
                others.append(held(f"{name}-{minor}", name, f"gpu-{minor}", memory=used, cores="50"))
        slices.append(slice_of(name, *devices))
    names = ["a", "b"][: draw(st.integers(1, 2))]
    wanted = [draw(requests(name)) for name in names]
    constraints = []
    if draw(st.booleans()):
        concerned = draw(st.sampled_from([names[:1], names, [f"{names[0]}/x"]]))
        constraints.append({"matchAttribute": f"{DRIVER}/island", "requests": concerned})
    return slices, others, claim("mine", *wanted, constraints=constraints)


@given(clusters())
def test_a_pod_waits_where_no_node_has_devices_for_it(found):
    slices, others, mine = found
    fitting = []
    for each in slices:
        if Devices([each], others).allocate(mine, CLASSES) is not None:
            fitting.append(each["spec"]["nodeName"])
    text = why(pod("mine"), nodes=[node("node-1"), node("node-2")], slices=slices, claims=[mine, *others])
    if fitting:
        assert text.startswith(f"GPUs are free for it on {', '.join(fitting)}, so"), text
    else:
        assert text.startswith("wants "), text
        assert "GPUs are free" not in text
