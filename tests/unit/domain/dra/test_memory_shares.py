"""The memory shares of pods by their ResourceClaims."""

from dataclasses import replace

from gpuagent.domain.dra.memory_shares import claim_shares
from gpuagent.domain.pods.parse_pod import parse_pod
from gpuagent.domain.pods.pod import Pod
from gpuagent.domain.sharing.claim import PreparedClaim
from tests.unit.domain.builders import box, uuid
from tests.unit.domain.dra.prepared_claims import claiming, prepared

GIB = 2**30
GPUS = box(2)
FOUR = {uuid(0): 4 * GIB}


def pod(*claims: str, containers: int = 1, **changes) -> Pod:
    return replace(parse_pod(claiming("p", *claims, containers=containers)), **changes)


def with_requests(claim: PreparedClaim, *requests: str) -> PreparedClaim:
    """The claim with a request for each of its GPUs."""
    named = zip(claim.gpus, requests, strict=True)
    return replace(claim, gpus=tuple(replace(gpu, request=request) for gpu, request in named))


def test_a_claim_is_the_share_of_the_container_that_uses_it():
    (shares,) = claim_shares([prepared("one", GPUS[0])], [pod("one")]).values()
    assert shares.of_claims
    assert (shares.total, shares.containers, shares.pooled) == (FOUR, {"main": FOUR}, frozenset())


def test_a_claim_of_several_containers_is_one_share_that_they_use_together():
    (shares,) = claim_shares([prepared("one", GPUS[0])], [pod("one", containers=2)]).values()
    assert (shares.total, shares.containers) == (FOUR, {"main": FOUR, "main-1": FOUR})
    assert shares.pooled == {uuid(0)}


def test_claims_of_one_gpu_add_up_for_the_pod_and_not_for_others():
    first, second = prepared("one", GPUS[0]), prepared("two", GPUS[0], mib=2048)
    apart = pod("one", claims={"one": ("main",), "two": ("side",)})
    (shares,) = claim_shares([first, second], [apart]).values()
    assert shares.total == {uuid(0): 6 * GIB}
    assert shares.containers == {"main": FOUR, "side": {uuid(0): 2 * GIB}}
    assert shares.pooled == frozenset()


def test_a_container_has_the_gpus_of_its_own_requests():
    """The scheduler makes one claim for all containers of a pod, with a request for each."""
    claim = with_requests(prepared("one", *GPUS), "of-main", "of-side")
    split = pod("one", claims={"one": ("main", "side")})
    requests = {("one", "main"): frozenset({"of-main"}), ("one", "side"): frozenset({"of-side"})}
    (shares,) = claim_shares([claim], [replace(split, claim_requests=requests)]).values()
    assert shares.total == {uuid(0): 4 * GIB, uuid(1): 4 * GIB}
    assert shares.containers == {"main": FOUR, "side": {uuid(1): 4 * GIB}}
    assert shares.pooled == frozenset()


def test_several_devices_of_one_gpu_add_up_in_a_container():
    claim = prepared("one", GPUS[0], GPUS[0])
    (shares,) = claim_shares([claim], [pod("one")]).values()
    assert shares.containers == {"main": {uuid(0): 8 * GIB}}
    assert shares.total == {uuid(0): 8 * GIB}


def test_whole_gpus_and_monitors_have_no_share():
    whole = prepared("whole", GPUS[0], mib=GPUS[0].memory_mib)
    watch = prepared("watch", GPUS[1])
    watch = replace(watch, gpus=tuple(replace(gpu, admin=True) for gpu in watch.gpus))
    assert claim_shares([whole, watch], [pod("whole", "watch")]) == {}
    share = prepared("share", GPUS[1])
    (shares,) = claim_shares([whole, watch, share], [pod("whole", "watch", "share")]).values()
    assert shares.total == {uuid(1): 4 * GIB}


def test_an_ended_pod_and_a_pod_of_another_namespace_have_no_share():
    claims = [prepared("one", GPUS[0])]
    assert claim_shares(claims, [pod("one", ended=True)]) == {}
    stranger = pod("one")
    assert claim_shares(claims, [replace(stranger, name=stranger.name._replace(namespace="blue"))]) == {}
    assert claim_shares(claims, [pod("another")]) == {}


def test_each_pod_of_a_claim_has_its_share():
    second = replace(pod("one"), uid="uid-q")
    shares = claim_shares([prepared("one", GPUS[0])], [pod("one"), second])
    assert {uid: share.total for uid, share in shares.items()} == {"uid-p": FOUR, "uid-q": FOUR}
