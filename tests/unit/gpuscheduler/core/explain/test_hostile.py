"""Whatever stands in pods, claims, classes, slices and nodes: there is a sentence, and its work is bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscheduler.core.explain.claim_facts import read_claiming_pod
from gpuscheduler.core.explain.claim_reason import claim_reason
from gpuscheduler.core.explain.selection import Work
from tests.unit.gpuscheduler.core.explain.cluster_objects import (
    DRIVER,
    SHARE,
    claim,
    classes,
    cluster_of,
    gpu,
    held,
    node,
    pod,
    request,
    slice_of,
    why,
)
from tests.unit.gpuscheduler.core.work import calls_of

MOST_CALLS = 5_000_000
"""Function calls for claims as large as they may be: about 1,200,000. Without a bound they would be billions."""
A = f'device.attributes["{DRIVER}"]'
PLAIN = "plain"
"""A class without selectors."""
WORDS = [
    *("metadata", "name", "namespace", "labels", "annotations", "spec", "status", "uid", "nodeName", "driver", "pool"),
    *("devices", "requests", "exactly", "firstAvailable", "deviceClassName", "count", "allocationMode", "selectors"),
    *(
        "cel",
        "expression",
        "capacity",
        "memory",
        "value",
        "requestPolicy",
        "default",
        "validRange",
        "min",
        "step",
        "max",
    ),
    *("validValues", "attributes", "string", "int", "bool", "version", "taints", "key", "effect", "tolerations"),
    *(
        "operator",
        "constraints",
        "matchAttribute",
        "allocation",
        "results",
        "device",
        "consumedCapacity",
        "reservedFor",
    ),
    *(
        "nodeSelector",
        "nodeSelectorTerms",
        "matchFields",
        "values",
        "resourceClaims",
        "resourceClaimName",
        "generation",
    ),
    *("resourceClaimTemplateName", "resourceClaimStatuses", "conditions", "type", "message", "PodScheduled", "False"),
    *(
        "schedulingGates",
        "containers",
        "resources",
        "limits",
        "aliyun.com/gpu",
        "aliyun.com/gpu-mem",
        "resourceSliceCount",
    ),
    *(
        "sharedCounters",
        "consumesCounters",
        "counterSet",
        "counters",
        "allowMultipleAllocations",
        "extendedResourceName",
    ),
]
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from([*WORDS, DRIVER, "All", "80Gi", "-1", "1e99", "node-1", "mine", f"{A}.minor == 0", "\x1b[31m", ""]),
    st.text(max_size=8),
)
anything = st.recursive(
    values,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(WORDS), inner, max_size=4)),
    max_leaves=12,
)


def objects():
    """A cluster in which everything is as it should be."""
    return {
        "pod": pod("mine", template="t", made="made", limits={"aliyun.com/gpu": "1"}),
        "node": node("node-1"),
        "slice": slice_of("node-1", gpu(0), gpu(1, taint="fenced")),
        "claim": claim(
            "mine", request(memory="30Gi", cel=f"{A}.minor == 0"), constraints=[{"matchAttribute": f"{DRIVER}/minor"}]
        ),
        "held": held("other", "node-1", "gpu-0"),
        "class": classes("aliyun.com/gpu")[0],
    }


def paths(value, path=()):
    """The way to each part of an object."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*path, key))


def replaced(value, path, other):
    """The object with another part."""
    if not path:
        return other
    key, *rest = path
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[key] = replaced(value[key], rest, other)
    return copy


def sentence(found):
    made = claim("made", request())
    dicts = {name: each if isinstance(each, dict) else {} for name, each in found.items()}
    return why(
        dicts["pod"],
        nodes=[dicts["node"], node("node-2", mode="share")],
        slices=[dicts["slice"]] if "slice" in dicts else [],
        claims=[dicts["claim"], dicts["held"], made],
        device_classes=[dicts["class"], *classes()[1:], {"metadata": {"name": PLAIN}, "spec": {}}],
        pods=[dicts["pod"]],
    )


@pytest.mark.parametrize("requests", [(), (request(PLAIN),), (request(PLAIN, count=2, memory="1Gi"),)])
@pytest.mark.parametrize("slices", [[], [slice_of("node-1")], [slice_of("node-1", gpu(0), driver="other.example")]])
def test_claims_for_anything_have_a_reason_without_our_devices(requests, slices):
    facts = cluster_of(
        claims=[claim("mine", *requests)],
        slices=slices,
        device_classes=[{"metadata": {"name": PLAIN}, "spec": {}}],
    )
    waiting = read_claiming_pod(pod("mine"))
    assert isinstance(claim_reason(waiting, facts.claims).text, str)


@given(st.data())
def test_any_part_may_be_anything(data):
    found = objects()
    if data.draw(st.booleans()):
        # No device is published.
        del found["slice"]
    device_class = data.draw(st.sampled_from([SHARE, PLAIN, "none"]))
    selector = data.draw(st.sampled_from(["", f"{A}.minor == 0"]))
    constraints = [{"matchAttribute": f"{DRIVER}/minor"}]
    found["claim"] = claim("mine", request(device_class, memory="30Gi", cel=selector), constraints=constraints)
    if data.draw(st.booleans()):
        found["pod"] = pod("mine")
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(sorted(found)))
        path = data.draw(st.sampled_from(list(paths(found[name]))))
        found[name] = replaced(found[name], path, data.draw(anything))
    assert isinstance(sentence(found), str)


def test_work_for_large_claims_is_bounded():
    large = f"{A}.minor in [{', '.join(map(str, range(1000)))}] && true"
    requests = [request(name=f"r{n}", count=16, cel=large, memory="1Gi") for n in range(32)]
    constraints = [{"matchAttribute": f"{DRIVER}/minor"} for _ in range(32)]
    slices = [slice_of(f"node-{n}", *(gpu(m) for m in range(8))) for n in range(200)]
    nodes = [node(f"node-{n}") for n in range(200)]
    claims = [claim("mine", *requests, constraints=constraints)]
    calls, text = calls_of(lambda: why(pod("mine"), claims=claims, nodes=nodes, slices=slices))
    assert text
    assert len(text) < 1000
    assert calls < MOST_CALLS


def alternatives_of(count, cel=""):
    """Requests that have as many alternatives as a claim may have, each of which fits."""
    written = []
    for n in range(32):
        choices = [{"name": f"a{k}", **request(cel=cel, memory="1Gi")["exactly"]} for k in range(count)]
        written.append({"name": f"r{n}", "firstAvailable": choices})
    return written


TOO_LARGE = "its claims are too large to be explained here: the pod's condition PodScheduled has kube-scheduler's words"


@pytest.mark.parametrize("count, cel", [(8, ""), (8, "true || " * 400 + "true"), (1, "true || " * 1000 + "true")])
def test_work_of_an_explanation_ends_whatever_it_is_spent_on(monkeypatch, count, cel):
    steps = []
    spend = Work.spend

    def spent(work, number=1):
        steps.append(number)
        spend(work, number)

    monkeypatch.setattr(Work, "spend", spent)
    slices = [slice_of(f"node-{n}", *(gpu(m) for m in range(8))) for n in range(25)]
    names = [f"c{n}" for n in range(4)]
    claims = [claim(name, *alternatives_of(count, cel)) for name in names]
    assert why(pod(*names), claims=claims, nodes=[node("node-0")], slices=slices) == TOO_LARGE
    assert sum(steps) < 300_000


def test_a_usual_claim_is_explained_in_a_large_cluster():
    slices = [slice_of(f"node-{n}", *(gpu(m) for m in range(8))) for n in range(1500)]
    text = why(pod("mine"), claims=[claim("mine", request(memory="90Gi"))], nodes=[node("node-0")], slices=slices)
    assert text == "wants 90Gi on one GPU: the largest GPU has 80Gi, such as node-0 GPU 0"
