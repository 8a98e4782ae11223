"""Prepared claims never have more of a GPU than there is."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain.dra.ledger import conflict, in_use, is_same, most_sharers
from gpuagent.domain.pods.parse_pod import parse_pod
from tests.unit.domain.builders import NodeUnderTest, box
from tests.unit.domain.dra.prepared_claims import claiming, prepared

GPUS = box(2, 16)
BY_UUID = {gpu.uuid: gpu for gpu in GPUS}
ALL = GPUS[0].memory_mib
SHARERS = 4


def monitor(name):
    """A claim with adminAccess to all GPUs."""
    claim = prepared(name, *GPUS, mib=0)
    return replace(claim, gpus=tuple(replace(gpu, admin=True) for gpu in claim.gpus))


def in_namespace(namespace, claim):
    return replace(claim, namespace=namespace, uid=f"{claim.uid}-{namespace}")


@pytest.mark.parametrize(
    ("claim", "others", "words"),
    [
        (
            prepared("b", GPUS[0]),
            [prepared("a", GPUS[0], mib=ALL)],
            "GPU 0 is still prepared as a whole GPU for claim ml/a.",
        ),
        (prepared("b", GPUS[0], mib=ALL), [prepared("a", GPUS[0])], "GPU 0 is needed whole, and a part of it is still"),
        (prepared("b", *GPUS, mib=ALL), [prepared("a", GPUS[1])], "GPU 1 is needed whole"),
        (prepared("b", GPUS[0], mib=9216), [prepared("a", GPUS[0], mib=8192)], "has 8 GiB of memory free of 16 GiB"),
        (
            prepared("b", GPUS[0], cores=60),
            [prepared("a", GPUS[0], cores=50)],
            "has 50 % of compute free, and the claim",
        ),
        (prepared("b", GPUS[0], mib=1024), [prepared(f"a{n}", GPUS[0], mib=1024) for n in range(4)], "takes 4 shares"),
        (
            prepared("b", GPUS[0], mib=ALL, device="gpus-2-x"),
            [prepared("a", *GPUS, mib=ALL, device="gpus-2-y")],
            "claim ml/a",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_the_names_of_the_others(claim, others, words):
    found = conflict(claim, others, BY_UUID, SHARERS)
    assert found is not None
    assert words in found.message
    assert found.others == tuple(others)


@pytest.mark.parametrize(
    ("claim", "others"),
    [
        (prepared("b", GPUS[0], mib=8192), [prepared("a", GPUS[0], mib=8192)]),
        (prepared("b", GPUS[0], cores=50), [prepared("a", GPUS[0], cores=50)]),
        (prepared("b", GPUS[0], mib=ALL), [prepared("a", GPUS[1], mib=ALL)]),
        (prepared("b", GPUS[0], mib=1024), [prepared(f"a{n}", GPUS[0], mib=1024) for n in range(3)]),
        (prepared("a", GPUS[0], mib=ALL), [prepared("a", GPUS[0], mib=ALL)]),
        (prepared("b", GPUS[0], mib=ALL), [monitor("m")]),
        (monitor("m"), [prepared("a", *GPUS, mib=ALL)]),
        (monitor("m"), [monitor("n")]),
    ],
)
def test_what_fits_is_prepared(claim, others):
    assert conflict(claim, others, BY_UUID, SHARERS) is None


def test_a_claim_of_the_same_name_in_another_namespace_is_another_claim():
    theirs, ours = (in_namespace(name, prepared("train", GPUS[0], mib=ALL)) for name in ("blue", "red"))
    found = conflict(ours, [theirs], BY_UUID, SHARERS)
    assert found is not None
    assert "claim blue/train" in found.message
    pods = [parse_pod(claiming("p", "train"))]
    assert not in_use([theirs], pods)
    assert in_use([in_namespace("ml", theirs)], pods)


def test_many_others_are_named_in_part():
    others = [prepared(f"a{n}", GPUS[0], mib=2048) for n in range(8)]
    found = conflict(prepared("b", GPUS[0]), others, BY_UUID, 20)
    assert found is not None
    assert "claims ml/a0, ml/a1, ml/a2 and 5 more" in found.message


@pytest.mark.parametrize("change", [{"deletionTimestamp": "2026-01-01T00:00:00Z"}, None])
def test_a_claim_is_in_use_until_its_pod_is_being_deleted(change):
    pod = claiming("p", "a")
    pod["metadata"] |= change or {}
    assert in_use([prepared("a", GPUS[0])], [parse_pod(pod)]) is (change is None)


def test_a_claim_of_a_pod_that_has_ended_is_not_in_use():
    pod = claiming("p", "a")
    pod["status"]["phase"] = "Succeeded"
    living = parse_pod(claiming("q", "b"))
    assert not in_use([prepared("a", GPUS[0])], [parse_pod(pod), living])
    assert in_use([prepared("a", GPUS[0]), prepared("b", GPUS[1])], [parse_pod(pod), living])


def test_the_second_gpu_of_a_claim_is_looked_at_when_the_first_is_free_or_gone():
    both = prepared("b", *GPUS, mib=ALL)
    others = [prepared("a", GPUS[1], mib=1024)]
    for known in (BY_UUID, {GPUS[1].uuid: GPUS[1]}):
        found = conflict(both, others, known, SHARERS)
        assert found is not None
        assert "GPU 1 is needed whole" in found.message


def test_a_prepared_claim_is_the_same_if_its_amounts_are():
    claim = prepared("a", GPUS[0])
    assert is_same(claim, prepared("a", GPUS[0]))
    for other in (None, prepared("a", GPUS[1]), prepared("a", GPUS[0], mib=8192), prepared("a", GPUS[0], cores=5)):
        assert not is_same(claim, other)


def test_the_sharers_are_those_that_the_slice_offers():
    assert most_sharers(NodeUnderTest(max_pods_per_gpu=7).state) == 7


claims = st.builds(
    lambda name, gpus, mib, cores: prepared(
        name, *(GPUS[n] for n in sorted(gpus)), mib=mib, cores=cores if mib < ALL else 0
    ),
    st.sampled_from("abcdefgh"),
    st.sets(st.integers(0, 1), min_size=1),
    st.sampled_from([1024, 4096, 8192, 15360, ALL]),
    st.sampled_from([0, 5, 50, 100]),
)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["blue", "red"]), claims), max_size=40))
def test_whatever_is_asked_no_gpu_is_given_beyond_what_it_has(steps):
    """Claims come and go, with equal names in two namespaces."""
    held = {}
    for comes, namespace, claim in steps:
        ours = in_namespace(namespace, claim)
        if not comes:
            held.pop(ours.uid, None)
        elif ours.uid not in held and conflict(ours, held.values(), BY_UUID, SHARERS) is None:
            held[ours.uid] = ours
        memory, cores, sharers, whole = Counter(), Counter(), Counter(), Counter()
        for gpu in (gpu for one in held.values() for gpu in one.gpus):
            memory[gpu.uuid] += gpu.memory_mib
            cores[gpu.uuid] += gpu.cores
            sharers[gpu.uuid] += 1
            whole[gpu.uuid] += gpu.whole
        for uuid, count in sharers.items():
            assert memory[uuid] <= ALL
            assert cores[uuid] <= 100
            assert count <= SHARERS
            assert count == 1 or not whole[uuid]
