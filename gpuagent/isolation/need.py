"""The need for each isolation driver, from the agent's state."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from gpuagent.domain.deviceplugin.gpu_shares import largest_shares
from gpuagent.domain.deviceplugin.resize.resizing import most_shares, shares_in_force
from gpuagent.domain.dra.containers.union import together
from gpuagent.domain.dra.isolation import layer_mode, serving_layer
from gpuagent.domain.dra.memory_shares import claim_shares, claimed_shares
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.pods.pod import ContainerRef, Pod
from gpuagent.domain.sharing.claim import ClaimedGpu, PreparedClaim
from gpuagent.domain.sharing.gpu_share import GpuShare, largest
from gpuagent.domain.sharing.isolation_layers import MPS, NONE, parts
from gpuagent.domain.sharing.memory_shares import PodShares, joined_by_pod
from gpuagent.domain.sharing.mode import Mode
from gpuagent.domain.state import State
from gpuagent.isolation.interface import Need


def isolation_needs(state: State, drivers: Iterable[str]) -> dict[str, Need]:
    """The need for each driver now. The mode in a container's device ids shows which driver serves the container."""
    gpus = tuple(state.gpus.by_index)
    # Until both were read, containers of an earlier run may hold GPUs under any driver.
    knows_holdings = state.holdings.listed is not None and state.node.mode_known
    unknown = _unknown_shares(state)
    held_by_driver = _held_by_driver(state)
    pods_by_driver = pod_shares(state)
    # Before that, containers of an earlier run may be another driver's, and that one is chosen then. MPS would take
    # their GPUs for itself meanwhile.
    is_certain = knows_holdings and not state.isolation.unreported
    chosen = parts(serving_layer(state).driver) if is_certain else ()
    names = _container_names(state)
    seen = state.pods_by_kubelets_uid
    resized = most_shares(state)
    # The allocations as last read may lack a container that has started since.
    knows_largest = not unknown and state.holdings.problem is None
    needs = {}
    for driver in drivers:
        held = frozenset(held_by_driver[driver])
        pods = pods_by_driver.get(driver, {})
        present = {uid: pod for uid, pod in seen.items() if uid in pods and not pod.ended}
        needs[driver] = Need(
            gpus=gpus,
            serves=driver in chosen,
            in_use=bool(held) or not knows_holdings,
            held=held,
            disabled=state.node.isolation_disabled,
            pods=pods,
            knows_pods=not unknown,
            unknown=unknown,
            containers=names,
            resized=resized,
            pod_names={uid: str(pod.name) for uid, pod in present.items()},
            ending=_ends(present),
            largest=_largest(state) if driver == MPS and knows_largest else None,
        )
    return needs


def _ends(pods: Mapping[str, Pod]) -> dict[str, float]:
    """UID of each pod that is being deleted to the end of its grace period."""
    ends = {}
    for uid, pod in pods.items():
        # A static pod goes on when its mirror is deleted.
        if pod.ends_at is not None and pod.uid == uid:
            ends[uid] = pod.ends_at
    return ends


def _unknown_shares(state: State) -> str:
    """Why `pod_shares` may lack the share of a pod; empty if it has all: a driver takes the others for pods without."""
    if not state.node.mode_known:
        return "the node's label was not read yet: look whether the agent reaches the API server"
    if state.holdings.listed is None:
        why = state.holdings.problem or "it was not asked yet"
        return f"kubelet's allocations were not read yet ({why}): mount kubelet's directory pod-resources"
    # Until all have reported, the driver of a container that already runs is a guess.
    unreported = ", ".join(sorted(state.isolation.unreported))
    if unreported:
        return f"isolation driver {unreported} has not reported yet: look at the agent's log"
    # The users of a claim are known from the API server alone.
    if state.claims.prepared and not state.pods.known:
        return "the pods that use claims were not read yet: look whether the agent reaches the API server"
    recorded = frozenset[str]().union(*state.holdings.recorded.values())
    for holding in state.living_holdings:
        # The checkpoint may be missing or unreadable, or a moment older than the list.
        if holding.units and not holding.ids <= recorded:
            text = f"kubelet's checkpoint does not show the devices of {holding.owner}"
            return f"{text}: mount kubelet's directory device-plugins readable"
    return ""


def _held_by_driver(state: State) -> defaultdict[str, set[str]]:
    """Name of a driver to the UUIDs of the GPUs that its containers hold."""
    held: defaultdict[str, set[str]] = defaultdict(set)
    for mode, uuid in state.held_under:
        for driver in parts(state.layer_of(mode).driver):
            held[driver].add(uuid)
    for claim in state.claims.prepared.values():
        # Whole GPUs have no limits, so no driver serves them.
        uuids = [gpu.uuid for gpu in claim.gpus if not gpu.unlimited]
        for driver in parts(claim.layer):
            held[driver].update(uuids)
    return held


def _container_names(state: State) -> dict[str, str]:
    """Id of each container at the runtime to its name."""
    names: dict[str, str] = {}
    for pod in state.pods.seen:
        names.update(pod.container_ids)
    return names


def pod_shares(state: State) -> dict[str, dict[str, PodShares]]:
    """Name of a driver to the shares of the pods that it serves, by UID."""
    modes: defaultdict[str, list[Mode]] = defaultdict(list)
    for mode in Mode:
        for driver in parts(state.layer_of(mode).driver):
            modes[driver].append(mode)
    claims: defaultdict[str, list[PreparedClaim]] = defaultdict(list)
    for claim in state.claims.prepared.values():
        for driver in parts(claim.layer):
            claims[driver].append(claim)
    shares = {}
    for driver in {*modes, *claims} - {NONE}:
        of_devices = shares_in_force(state, modes[driver])
        of_claims = claim_shares(claims[driver], state.pods.seen)
        shares[driver] = joined_by_pod(of_devices, of_claims)
    return shares


def _largest(state: State) -> dict[str, GpuShare]:
    """GPU UUID to the largest share that a container has through MPS."""
    gpus = state.gpus.by_index
    unit = state.policy.unit
    entries = state.holdings.checkpoint
    drivers = {mode: state.layer_of(mode).driver for mode in Mode}
    alone = [mode for mode, driver in drivers.items() if driver == MPS]
    with_partner = [mode for mode, driver in drivers.items() if driver != MPS and MPS in parts(driver)]
    limits_compute = layer_mode(state) is Mode.CORE_MEM
    shares = [
        largest_shares(entries, gpus, unit, alone),
        _with_all_memory(largest_shares(entries, gpus, unit, with_partner), gpus),
    ]
    for claim in _used_together(state):
        of_claim = claimed_shares(claim, state.gpus.by_uuid, unit, limits_compute=limits_compute)
        shares.append(of_claim if claim.layer == MPS else _with_all_memory(of_claim, gpus))
    return largest(shares)


def _used_together(state: State) -> Iterator[PreparedClaim]:
    """The claims through MPS, as one claim for each container: it may use several shares of a GPU as one."""
    used: dict[ContainerRef, list[tuple[PreparedClaim, ClaimedGpu]]] = {}
    for uid, owners in state.claim_holders.items():
        claim = state.claims.prepared[uid]
        if MPS not in parts(claim.layer):
            continue
        for owner, requests in owners.items():
            of_claim = [(claim, gpu) for gpu in claim.gpus_of(requests) if not gpu.admin]
            used.setdefault(owner, []).extend(of_claim)
    for of_container in used.values():
        for claim, _ in of_container[:1]:
            yield replace(claim, gpus=together(of_container))


def _with_all_memory(shares: Mapping[str, GpuShare], gpus: Collection[Gpu]) -> dict[str, GpuShare]:
    """The shares of containers whose memory another driver limits."""
    return {gpu.uuid: shares[gpu.uuid].with_all_memory(gpu) for gpu in gpus if gpu.uuid in shares}
