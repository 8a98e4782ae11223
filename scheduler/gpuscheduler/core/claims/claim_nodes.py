"""How well nodes suit a pod with claims for GPUs, among those that kube-scheduler accepts."""

import heapq
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.sharing.mode import CORE_PERCENT_PER_GPU
from gpuscheduler.core.claims.gpu_claims import ClaimDemand, GpuClaim, HeldDevice
from gpuscheduler.core.claims.gpu_devices import GpuDevice, SliceFacts
from gpuscheduler.core.policy.fleet import MOST_GPUS, CostPolicy, Demand, Fleet, Floats
from gpuscheduler.core.policy.mix import Mix
from gpuscheduler.core.single_pods.scores import HIGHEST

SECOND = 5
"""The highest score of a node that is not the best. The gap outweighs the sum of what kube-scheduler itself gives an
emptier node, and a node without other pods of the same ReplicaSet."""
MOST_STATES = 500
"""States of nodes that are rated for one call. Nodes in other states come last in this call."""
MOST_RATED = 1000
"""Ratings of a demand in a state for one call, which is to take less than 10 ms. The smallest demands are left out."""
LEARNED_PARTS = 16
"""Parts of a GPU in which the sizes of claims are learned. A rating takes as long as there are sizes, and any author of
claims may write as many as a GPU has MiB."""
CORES = 1e4
"""Cores of every node. kube-scheduler's own scores look at CPU."""
SMALL = ClaimDemand(1, memory_mib=1, cores=0)
"""Stands for a claim that the watch has not shown yet."""


@dataclass(frozen=True, slots=True)
class _State:
    """What is free on a node. Nodes in equal states cost the same.

    Attributes:
        memory_mib: of its largest GPU.
        free: the free part of each GPU, 0 to 1.
    """

    memory_mib: int
    free: tuple[float, ...]


class ClaimNodes:
    """The nodes that publish devices, and the claims that have some.

    kube-scheduler writes an allocation only after it has decided on the next pods. So this view is some pods behind.

    Args:
        policy: rates a choice.
        mix: of claims, by which the policy rates. It is learned from those that are seen.
    """

    def __init__(self, policy: CostPolicy, mix: Mix) -> None:
        self._policy = policy
        self._mix = mix
        self._slices: dict[str, SliceFacts] = {}
        self._slices_of: dict[str, set[str]] = {}
        self._claims: dict[PodName, GpuClaim] = {}
        self._claims_on: dict[str, set[PodName]] = {}
        self._states: dict[str, _State] = {}

    def __contains__(self, node: object) -> bool:
        """Whether a node publishes devices."""
        return node in self._slices_of

    @property
    def has_devices(self) -> bool:
        """Whether any node publishes devices."""
        return bool(self._slices_of)

    def has_claim(self, names: Iterable[PodName]) -> bool:
        """Whether any of the claims is for our devices."""
        return any(name in self._claims for name in names)

    def slice_seen(self, found: SliceFacts) -> None:
        """Take a slice as it is now."""
        self.slice_gone(found.name)
        self._slices[found.name] = found
        self._slices_of.setdefault(found.node, set()).add(found.name)

    def slice_gone(self, name: str) -> None:
        """Forget a slice."""
        former = self._slices.pop(name, None)
        if former is None:
            return
        names = self._slices_of[former.node]
        names.discard(name)
        if not names:
            del self._slices_of[former.node]
        self._states.pop(former.node, None)

    def claim_seen(self, claim: GpuClaim) -> None:
        """Take a claim as it is now."""
        former = self._claims.get(claim.name)
        is_new = former is None
        if former:
            self.claim_gone(former)
        self._claims[claim.name] = claim
        for device in claim.held:
            self._claims_on.setdefault(device.node, set()).add(claim.name)
            self._states.pop(device.node, None)
        if is_new and not claim.held:
            self._learn(claim)

    def claim_gone(self, claim: GpuClaim) -> None:
        """Forget a claim, unless another one has its name by now."""
        former = self._claims.get(claim.name)
        if former is None or former.uid != claim.uid:
            return
        del self._claims[claim.name]
        for device in former.held:
            names = self._claims_on.get(device.node, set())
            names.discard(claim.name)
            if not names:
                self._claims_on.pop(device.node, None)
            self._states.pop(device.node, None)

    def scores(self, claims: Collection[PodName], nodes: Collection[str]) -> dict[str, int]:
        """Score of each of `nodes`, 0 to 10, for a pod with these claims; empty if none of them is for our devices.

        One node gets the highest score. Of equal ones it is the same each time, so that pods that come at once go to
        one node until it is full.
        """
        demands = self._demands(claims, nodes)
        if not demands:
            return {}
        scores = dict.fromkeys(nodes, 0)
        nodes_in = self._by_state(nodes)
        costs = self._costs(demands, list(nodes_in)[:MOST_STATES])
        if not costs:
            return scores
        cheapest = min(costs.values())
        dearest = max(costs.values())
        for state, cost in costs.items():
            part = (dearest - cost) / (dearest - cheapest) if dearest > cheapest else 1.0
            scores.update(dict.fromkeys(nodes_in[state], int(SECOND * part)))
        scores[_best(costs, nodes_in)] = HIGHEST
        return scores

    def _by_state(self, nodes: Iterable[str]) -> dict[_State, list[str]]:
        """Those of `nodes` that publish devices, by what is free on them."""
        nodes_in: dict[_State, list[str]] = {}
        for node in nodes:
            # A call may have thousands of nodes, and of most the state is known.
            state = self._states.get(node)
            if state is None and node in self:
                state = self._state(node)
            if state is not None:
                nodes_in.setdefault(state, []).append(node)
        return nodes_in

    def _demands(self, claims: Collection[PodName], nodes: Collection[str]) -> list[ClaimDemand]:
        """What the claims ask for of our devices."""
        demands: list[ClaimDemand] = []
        is_unseen = False
        for name in claims:
            claim = self._claims.get(name)
            if claim is None:
                is_unseen = True
            else:
                demands += claim.demands
        # kube-scheduler may be faster than the watch. If it accepts our nodes alone, the claim is for our devices.
        if not demands and is_unseen and all(node in self for node in nodes):
            return [SMALL]
        return demands

    def _costs(self, demands: Iterable[ClaimDemand], states: list[_State]) -> dict[_State, float]:
        """What the demands cost in the states where they fit."""
        counted = Counter(demands)
        longest = max((len(demand.alternatives) for demand in counted), default=1)
        most = max(1, MOST_RATED // max(1, len(states) * longest))
        # Any pod may have more of them than there is time for. The largest ones decide where it fits well.
        largest = heapq.nlargest(most, counted, key=_size)
        rated = np.zeros(len(states))
        for demand in largest:
            rated += counted[demand] * self._rated_where_free(demand, states)
        costs = zip(states, rated.tolist(), strict=True)
        return {state: cost for state, cost in costs if math.isfinite(cost)}

    def _rated_where_free(self, demand: ClaimDemand, states: list[_State]) -> Floats:
        """The cost of the first alternative of a demand that fits in any state: the author prefers it to later ones."""
        for alternative in demand.alternatives:
            rated = self._rated(alternative, states)
            if np.isfinite(rated).any():
                break
        return rated

    def _rated(self, demand: ClaimDemand, states: list[_State]) -> Floats:
        """The cost of one demand in each state; infinite where it does not fit."""
        free = np.zeros((len(states), MOST_GPUS))
        fractions = np.zeros(len(states))
        gpus = np.zeros(len(states), dtype=np.int64)
        for row, state in enumerate(states):
            parts = state.free[:MOST_GPUS]
            free[row, : len(parts)] = parts
            gpus[row] = len(parts)
            fractions[row] = _fraction(demand, state.memory_mib)
        cores = np.full(len(states), CORES)
        fleet = Fleet(
            free=free,
            gpus=gpus,
            cpu_free=cores,
            cpu_total=cores,
            model=np.zeros(len(states), dtype=np.int64),
        )
        costs = np.full(len(states), np.inf)
        # A policy rates a part of a GPU, which is another one on nodes with other GPUs.
        for fraction in set(fractions.tolist()):
            rows = np.flatnonzero(fractions == fraction)
            if fraction <= 1:
                costs[rows], _ = self._policy.costs(fleet, rows, Demand(demand.gpus, fraction))
        return costs

    def _state(self, node: str) -> _State:
        state = self._states.get(node)
        if state is None:
            state = self._state_now(node)
            self._states[node] = state
        return state

    def _state_now(self, node: str) -> _State:
        devices: dict[str, GpuDevice] = {}
        for name in sorted(self._slices_of[node]):
            for device in self._slices[name].devices:
                devices[device.name] = device
        used = _Used()
        for claim in self._claims_on.get(node, ()):
            for held in self._claims[claim].held:
                if held.node == node:
                    used.add(held, devices)
        gpus = [device for device in devices.values() if not device.members]
        # In another order of the slice, the state is the same.
        free = sorted(used.free_part(gpu) for gpu in gpus)
        largest = max((gpu.memory_mib for gpu in gpus), default=0)
        return _State(largest, tuple(free))

    def _learn(self, claim: GpuClaim) -> None:
        """Count the demands of a new claim, as parts of the GPUs of the node that was seen last."""
        newest = next(reversed(self._slices_of), None)
        if newest is None:
            return
        memory_mib = self._state(newest).memory_mib
        for demand in claim.demands:
            fraction = math.ceil(_fraction(demand, memory_mib) * LEARNED_PARTS) / LEARNED_PARTS
            if fraction > 1 or demand.gpus > MOST_GPUS:
                continue
            # Several shares are learned as one, so that few demands are told apart.
            gpus = demand.gpus if fraction == 1 else 1
            self._mix.saw(Demand(gpus, fraction))


def _best(costs: Mapping[_State, float], nodes_in: Mapping[_State, Iterable[str]]) -> str:
    """The node that costs least. Of equal cost, it is the fullest; of equally full ones, always the same."""
    ranks = {state: (cost, sum(state.free)) for state, cost in costs.items()}
    best = min(ranks.values())
    names: list[str] = []
    for state, rank in ranks.items():
        if rank == best:
            names += nodes_in[state]
    # A fixed permutation decides, so that not every cluster begins with the node whose name comes first.
    return min(names, key=lambda name: crc32(name.encode()))


def _size(demand: ClaimDemand) -> tuple[int, float, int]:
    """To compare demands: GPUs, and of each the memory, all of it last, and the compute."""
    return demand.gpus, demand.memory_mib or math.inf, demand.cores


class _Used:
    """What claims have of the GPUs of a node."""

    def __init__(self) -> None:
        self._mib = Counter[str]()
        self._cores = Counter[str]()
        self._whole = set[str]()

    def add(self, held: HeldDevice, devices: Mapping[str, GpuDevice]) -> None:
        device = devices.get(held.device)
        members = device.members if device else ()
        if members or not held.memory_mib:
            self._whole.update(members or [held.device])
        self._mib[held.device] += held.memory_mib
        self._cores[held.device] += held.cores

    def free_part(self, gpu: GpuDevice) -> float:
        """Of memory or of compute, whichever is smaller."""
        if not gpu.usable or gpu.name in self._whole:
            return 0.0
        free = 1 - self._cores[gpu.name] / CORE_PERCENT_PER_GPU
        if gpu.memory_mib:
            free = min(free, 1 - self._mib[gpu.name] / gpu.memory_mib)
        return max(free, 0.0)


def _fraction(demand: ClaimDemand, memory_mib: int) -> float:
    """The part of a GPU that the demand takes; above 1 if it takes more than there is."""
    if not demand.memory_mib or not memory_mib:
        return 1.0
    return max(demand.memory_mib / memory_mib, demand.cores / CORE_PERCENT_PER_GPU)
