"""The whole state of the agent, as one frozen value."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, wraps
from itertools import chain
from typing import TypeVar

from gpuagent.domain.node_state.allocations import Holdings, LivingHoldings
from gpuagent.domain.node_state.claims import Claims
from gpuagent.domain.node_state.device_lists import Advertised, AllocateCalls, DeviceRange, FormerUnits
from gpuagent.domain.node_state.health_by_gpu import Health
from gpuagent.domain.node_state.isolation_drivers import IsolationDrivers
from gpuagent.domain.node_state.known_gpus import Gpus
from gpuagent.domain.node_state.node_object import Node
from gpuagent.domain.node_state.pod_list import Pods
from gpuagent.domain.node_state.resizes import Resizes
from gpuagent.domain.pods.holdings import NVIDIA_GPU, held_otherwise
from gpuagent.domain.pods.pod import ContainerRef, Holding, Pod, PodName
from gpuagent.domain.pods.quantity import amount
from gpuagent.domain.policy import Policy
from gpuagent.domain.scheduling.held_gpus import PodsHeld
from gpuagent.domain.sharing.claim import ClaimedGpu, PreparedClaim
from gpuagent.domain.sharing.isolation_layers import Layer, chosen
from gpuagent.domain.sharing.mode import DRA_DRIVER, PROMISES, Kind, Mode
from gpuagent.domain.sharing.units import UnitId

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class State:
    """All facts that the agent has received, and the lists that it advertises.

    A value that depends on one part is a property of that part. The properties here join several parts.

    Attributes:
        former_units: by GPU UUID, units that containers got when the GPU had another number of them.
        published_pods: what pods hold whose annotations did not always say so.
        living: what follows from `pods` and `holdings`, carried over from state to state; read `living_holdings`.
    """

    policy: Policy
    gpus: Gpus = Gpus()
    health: Health = Health()
    node: Node = Node()
    pods: Pods = Pods()
    holdings: Holdings = Holdings()
    advertised: Advertised = Advertised()
    allocates: AllocateCalls = AllocateCalls()
    isolation: IsolationDrivers = IsolationDrivers()
    claims: Claims = Claims()
    resizes: Resizes = Resizes()
    former_units: Mapping[str, FormerUnits] = field(default_factory=dict)
    published_pods: PodsHeld = field(default_factory=dict)
    living: LivingHoldings = field(default=LivingHoldings(Holdings(), Pods()), compare=False, repr=False)

    @cached_property
    def resource_kinds(self) -> dict[str, Kind]:
        """Resource name to kind of unit for the mode in force."""
        return self.policy.resources.in_mode(self.node.mode)

    @cached_property
    def layer(self) -> Layer:
        """The isolation driver for the mode in force."""
        return self.layer_of(self.node.mode)

    def layer_of(self, mode: Mode) -> Layer:
        """The isolation driver for `mode`: the one its running containers have, if there are any."""
        isolation = self.isolation
        return chosen(mode, self.policy.isolation, isolation.layers, isolation.bound)

    @cached_property
    def unhealthy(self) -> dict[str, str]:
        """By UUID, why the agent shows a GPU as unhealthy: a fault, a fence, no driver, or no answer yet."""
        causes = (
            self.health.faults,
            self.gpus.fenced,
            self.gpus.without_driver,
            self.health.unasked,
        )
        reasons: dict[str, list[str]] = {}
        for by_uuid in causes:
            for uuid, reason in by_uuid.items():
                of_gpu = reasons.setdefault(uuid, [])
                of_gpu.append(reason)
        return {uuid: "; ".join(of_gpu) for uuid, of_gpu in reasons.items()}

    @cached_property
    def living_holdings(self) -> tuple[Holding, ...]:
        """Holdings of pods that have not ended, init containers' included."""
        return self.living.of(self.holdings, self.pods).all

    @property
    def pods_by_kubelets_uid(self) -> Mapping[str, Pod]:
        """UID in kubelet's checkpoint, and in the name of a pod's cgroup, to the pod as the API server has it."""
        return self.living.of(self.holdings, self.pods).pods_by_uid

    @cached_property
    def claim_holders(self) -> dict[str, dict[ContainerRef, frozenset[str]]]:
        """UID of each prepared claim to the containers that use it; one without a pod stands for those not seen yet.

        A container has the names of the requests that it uses; none if it uses all.
        """
        if not self.claims.prepared:
            return {}
        users = self._claim_users
        holders: dict[str, dict[ContainerRef, frozenset[str]]] = {}
        for claim in self.claims.prepared.values():
            containers = users.get((claim.namespace, claim.name))
            # No pod that uses it was seen yet.
            if not containers:
                unseen = ContainerRef(PodName(claim.namespace, ""), f"claim {claim.name}")
                containers = {unseen: frozenset()}
            holders[claim.uid] = containers
        return holders

    @property
    def _claim_users(self) -> dict[tuple[str, str], dict[ContainerRef, frozenset[str]]]:
        """Namespace and name of each claim to the containers of pods that use it, with the names of their requests."""
        users: dict[tuple[str, str], dict[ContainerRef, frozenset[str]]] = {}
        for pod in self.pods.seen:
            namespace = pod.name.namespace
            for claim, containers in pod.claims.items():
                of_claim = users.setdefault((namespace, claim), {})
                for container in containers:
                    owner = ContainerRef(pod.name, container)
                    of_claim[owner] = pod.claim_requests.get((claim, container), frozenset())
        return users

    def claim_parts(self, claim: PreparedClaim, uuid: str) -> dict[ContainerRef, list[ClaimedGpu]]:
        """The containers that have this GPU of a prepared claim, with the parts of it that each has."""
        parts: dict[ContainerRef, list[ClaimedGpu]] = {}
        for owner, requests in self.claim_holders[claim.uid].items():
            of_gpu = [gpu for gpu in claim.gpus_of(requests) if gpu.uuid == uuid]
            if of_gpu:
                parts[owner] = of_gpu
        return parts

    @cached_property
    def claim_holdings(self) -> tuple[Holding, ...]:
        """Prepared claims as holdings, whose ids are the UUIDs of the GPUs that they use."""
        holdings = []
        for uid, owners in self.claim_holders.items():
            claim = self.claims.prepared[uid]
            for owner, requests in owners.items():
                used = [gpu.uuid for gpu in claim.gpus_of(requests) if not gpu.admin]
                # A record that cannot be read names no GPUs either, and its claim may have any of them.
                only_watches = bool(claim.gpus) and not used
                if not only_watches:
                    holdings.append(Holding(owner, DRA_DRIVER, frozenset(used)))
        return tuple(holdings)

    @cached_property
    def held_units(self) -> list[UnitId]:
        """One unit of each holding of this agent's resources, also on a GPU that was never read."""
        return [holding.units[0][0] for holding in self.living_holdings if holding.units]

    @cached_property
    def held_under(self) -> set[tuple[Mode, str]]:
        """Mode and GPU UUID of every unit of this agent that a container holds by kubelet's allocations."""
        uuid_of = {gpu.key: uuid for uuid, gpu in self.gpus.by_uuid.items()}
        held: set[tuple[Mode, str]] = set()
        for unit in self.held_units:
            uuid = uuid_of.get(unit.gpu_key)
            if uuid is not None:
                held.add((unit.kind.mode, uuid))
        return held

    @cached_property
    def held_otherwise(self) -> dict[str, list[Holding]]:
        """GPU UUID to the holdings that block its resources in the mode in force."""
        serves_default = self.policy.resources.exclusive is not None
        return held_otherwise(
            self.living_holdings,
            self.gpus.by_uuid,
            self.node.mode,
            exclusive=serves_default,
        )

    @property
    def has_first_reads(self) -> bool:
        """Whether GPUs, kubelet's allocations and every isolation driver are known: the device lists are complete."""
        has_allocations = self.holdings.listed is not None
        return bool(self.gpus.by_uuid) and has_allocations and not self.isolation.unreported

    @property
    def has_startup_taint(self) -> bool:
        """Whether the node has the taint that `--startup-taint` names."""
        key = self.policy.startup_taint
        return bool(key) and self.node.has_taint(key)

    @cached_property
    def other_plugin_gpus(self) -> int:
        """Number of GPUs that another plugin advertises as `nvidia.com/gpu` while this agent's mode has them too."""
        has_gpus = self.resource_kinds or self.node.mode is Mode.DRA
        return self._nvidia_gpus if has_gpus else 0

    @property
    def _nvidia_gpus(self) -> int:
        """Number of GPUs that another plugin advertises as `nvidia.com/gpu`."""
        if NVIDIA_GPU in self.policy.resources.names:
            return 0
        quantity = self.node.allocatable.get(NVIDIA_GPU, 0)
        return amount(str(quantity)) or 0

    @cached_property
    def blocked(self) -> frozenset[str]:
        """UUIDs of GPUs that another mode or another plugin uses, or may use."""
        mode = self.node.mode
        is_for_claims = mode is Mode.DRA
        # A claim whose record cannot be read may have any GPU.
        may_be_claimed = self.claims.unreadable and not is_for_claims
        if self.other_plugin_gpus or may_be_claimed:
            return frozenset(self.gpus.by_uuid)
        blocked = {*self.held_otherwise, *self.advertised.unaudited}
        for block in self._listed_blocks:
            if block.kind.mode is not mode:
                blocked.add(block.gpu.uuid)
        if not is_for_claims:
            blocked |= self.claims.held | self.claims.published
        return frozenset(blocked)

    @property
    def _listed_blocks(self) -> Iterator[DeviceRange]:
        """The blocks of all device lists."""
        return chain.from_iterable(self.advertised.lists.values())

    @cached_property
    def barred_to_claims(self) -> dict[str, str]:
        """By UUID, why no further claim may get a GPU, in any mode: containers have units of it, or may get some."""
        gpus = self.gpus.by_uuid
        if self._nvidia_gpus:
            return dict.fromkeys(gpus, f"may be given to a pod by another plugin, which advertises {NVIDIA_GPU}")
        barred = dict.fromkeys(self.advertised.unaudited, "may just have been given to a pod of another mode")
        for block in self._listed_blocks:
            barred[block.gpu.uuid] = "is offered to pods of another mode"
        held = held_otherwise(self.living_holdings, gpus, Mode.DRA, exclusive=True)
        return barred | dict.fromkeys(held, "is still in use by pods of another mode")

    @cached_property
    def verified(self) -> frozenset[str]:
        """Resources whose containers PreStartContainer verifies: those of the mode, and of units still held."""
        modes = {unit.kind.mode for unit in self.held_units}
        modes.add(self.node.mode)
        names: set[str] = set()
        for mode in modes:
            if PROMISES[mode]:
                names.update(self.policy.resources.in_mode(mode))
        return frozenset(names)

    def same_allocations(self, other: "State") -> bool:
        """Whether kubelet's allocations, and the GPUs to interpret them, are those of `other`."""
        is_list_same = self.holdings.listed is other.holdings.listed
        is_checkpoint_same = self.holdings.checkpoint is other.holdings.checkpoint
        are_gpus_same = self.gpus.by_uuid is other.gpus.by_uuid
        return is_list_same and is_checkpoint_same and are_gpus_same


def once(work: Callable[[State], T]) -> Callable[[State], T]:
    """A cached property of the state, for a function of a module that imports this one."""
    name = f"{work.__module__}.{work.__name__}"

    @wraps(work)
    def worked_out(state: State) -> T:
        if name not in vars(state):
            vars(state)[name] = work(state)
        value: T = vars(state)[name]
        return value

    return worked_out
