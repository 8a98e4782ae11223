"""Brings the limits of pods into force: reads what the driver has, and sets what is not as planned."""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Protocol

from gpuagent.domain.sharing.units import MIB
from gpuagent.host.cgroups import PodsRoot, container_id, leaves
from gpuagent.host.limits_client import BelowUseError, Limit, LimitsError, NoTargetError, Target
from gpuagent.isolation.limits.audit import (
    UNLIMITED,
    Leaf,
    Repair,
    Why,
    foreign_repairs,
    has_unnamed,
    is_unreachable,
    leaf_repairs,
    pod_repairs,
    short_containers,
)
from gpuagent.isolation.limits.plan import Backend, PodPlan, Resized

log = logging.getLogger(__name__)


class LimitsOfDriver(Protocol):
    """NVIDIA's limits by cgroup, as `host.limits_client.LimitsClient` has them."""

    def set(self, target: Target, size: int) -> Limit:
        """Set a limit; what the driver then reports. Raises LimitsError."""

    def get_many(self, targets: Iterable[Target]) -> Mapping[Target, Limit | LimitsError]:
        """The limits in force, each or its error. Raises LimitsError."""


@dataclass(slots=True)
class Outcome:
    """What came of bringing the limits of one pod into force.

    Attributes:
        exists: the pod has a cgroup.
        repaired: why limits were set to how many, but for those of new containers.
        unlimited: GPU UUID to why the pod may use more of that GPU than its share.
        refused: GPU UUID to why a new limit of the pod is not in force, and the former one is.
        short: names of containers that have less than their share until they start again.
        has_unnamed: containers have limits that cannot be compared with the plan, as their names are not known yet.
    """

    exists: bool = True
    repaired: Counter[Why] = field(default_factory=Counter)
    unlimited: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    short: set[str] = field(default_factory=set)
    has_unnamed: bool = False

    @property
    def is_in_force(self) -> bool:
        """Whether all limits of the pod are as planned, as far as is known."""
        return self.exists and not self.refused and not self.unlimited

    @property
    def is_certain(self) -> bool:
        """Whether all limits of the pod are as planned."""
        return self.is_in_force and not self.has_unnamed


class PodLimits:
    """The limits of the pods of one node. For several threads: each call stands for itself, and may be repeated.

    Args:
        driver: sets and reads limits.
        root: the cgroup of all pods.
        backend: of NVIDIA's driver.
    """

    def __init__(self, driver: LimitsOfDriver, root: PodsRoot, backend: Backend) -> None:
        self.root = root
        self.backend = backend
        self._driver = driver

    def directory(self, uid: str) -> Path | None:
        """The cgroup of a pod; None if it has none yet, or has ended."""
        return self.root.pod_directory(uid)

    def leaves(self, uid: str) -> tuple[str, ...]:
        """Names of the cgroups of a pod's containers, its sandbox included."""
        directory = self.directory(uid)
        return leaves(directory) if directory else ()

    def settle(  # noqa: PLR0913 (all that the limits of a pod depend on)
        self,
        uid: str,
        plan: PodPlan,
        names: Mapping[str, str],
        former: Mapping[str, int],
        resized: Resized | None = None,
        *,
        new_leaf: str = "",
    ) -> Outcome:
        """Bring the limits of a pod into force, as far as the driver lets that happen.

        Args:
            uid: of the pod.
            plan: its limits.
            names: id of a container at the runtime to its name.
            former: GPU UUID to the limit that was in force by this driver.
            resized: of a pod whose shares were changed while it runs.
            new_leaf: name of a container's cgroup that appears just now.

        Raises:
            LimitsError: it is not known what is in force.
        """
        outcome = Outcome()
        if self.directory(uid) is None:
            outcome.exists = False
            return outcome
        in_force = self._read_pod(uid, plan.pod, outcome)
        if not outcome.exists:
            return outcome
        for repair in pod_repairs(plan, in_force, former, resized):
            self._repair(uid, repair, outcome)
        if not outcome.is_in_force:
            # A container without a limit of its own has what its pod has now. If it were given the planned one, that
            # would come on top of what it uses.
            in_force = self._read_pod(uid, in_force, outcome)
            plan = plan.on_pod(in_force)
        # Read only now, because on backend misc a container without a limit of its own reads that of its pod.
        containers = self._read_containers(uid, in_force, names, new_leaf)
        self._settle_containers(uid, plan, containers, resized, outcome)
        return outcome

    def _read_containers(
        self,
        uid: str,
        in_force: Mapping[str, Limit],
        names: Mapping[str, str],
        new_leaf: str,
    ) -> list[Leaf]:
        """The limits of a pod's containers, each with what the pod uses of the GPUs."""
        pod_used = {uuid: reading.used for uuid, reading in in_force.items()}
        containers = self._read_leaves(uid, self.leaves(uid), in_force, names, new_leaf)
        return [replace(leaf, pod_used=pod_used) for leaf in containers]

    def _settle_containers(
        self,
        uid: str,
        plan: PodPlan,
        containers: Sequence[Leaf],
        resized: Resized | None,
        outcome: Outcome,
    ) -> None:
        """Bring the limits of a pod's containers into force."""
        new_leaves = {leaf.name for leaf in containers if leaf.is_new}
        for repair in leaf_repairs(plan, self.backend, containers, resized):
            due = repair
            if repair.leaf in new_leaves:
                # A limit that a container was born with is that of a dead one, and no program set it here.
                due = replace(repair, why=Why.NEW)
            self._repair(uid, due, outcome)
        if resized is not None:
            self._refuse_unreachable(plan, containers, resized, outcome)
        outcome.short.update(short_containers(plan, self.backend, containers))
        outcome.has_unnamed = has_unnamed(plan, self.backend, containers, resized)

    def _refuse_unreachable(
        self,
        plan: PodPlan,
        containers: Iterable[Leaf],
        resized: Resized,
        outcome: Outcome,
    ) -> None:
        """Say which new limits no container can get while it runs."""
        for leaf in containers:
            for uuid in leaf.readings:
                if is_unreachable(plan, self.backend, uuid, leaf, resized):
                    text = f"container {leaf.container} has no limit of its own, which it gets when it starts again"
                    outcome.refused.setdefault(uuid, text)

    def limited_gpus(self, uid: str, uuids: Iterable[str]) -> frozenset[str]:
        """UUIDs of the GPUs on which a pod's own cgroup has a limit. Raises LimitsError."""
        answers = self._driver.get_many([Target(uuid, uid) for uuid in uuids])
        limits = {target.gpu: answer.hard for target, answer in answers.items() if isinstance(answer, Limit)}
        return frozenset(uuid for uuid, hard in limits.items() if hard not in UNLIMITED)

    def foreign(self, uid: str, leaf: str, uuids: Iterable[str], limited: Collection[str]) -> list[Repair]:
        """What to take off a new container without a share of these GPUs: limits of dead pods. Raises LimitsError.

        `limited` are those on which the pod has a limit.
        """
        return list(foreign_repairs(self._read_leaves(uid, (leaf,), uuids, {}), limited))

    def clear(self, uid: str, repair: Repair) -> None:
        """Do one of `foreign`. Raises LimitsError."""
        try:
            self._driver.set(Target(repair.uuid, uid, repair.leaf), repair.limit)
        except NoTargetError:
            return  # the container has ended
        log.warning("Took the limit of a dead pod off", extra={"pod_uid": uid, "gpu": repair.uuid})

    def _read_pod(self, uid: str, uuids: Iterable[str], outcome: Outcome) -> dict[str, Limit]:
        """GPU UUID to what the driver has for a pod's own cgroup. What cannot be read of one GPU goes to `outcome`.

        Raises:
            HelperGoneError: nothing can be read.
        """
        answers = self._driver.get_many([Target(uuid, uid) for uuid in uuids])
        in_force = {}
        for target, answer in answers.items():
            if isinstance(answer, Limit):
                in_force[target.gpu] = answer
            elif isinstance(answer, NoTargetError) and self.directory(uid) is None:
                outcome.exists = False
            else:
                # The limits on the other GPUs do not depend on this one.
                outcome.unlimited[target.gpu] = str(answer)
        return in_force

    def _read_leaves(
        self,
        uid: str,
        present: Iterable[str],
        uuids: Iterable[str],
        names: Mapping[str, str],
        new_leaf: str = "",
    ) -> list[Leaf]:
        """The limits of these containers, without those that have just ended and those that cannot be read."""
        targets = [Target(uuid, uid, leaf) for leaf, uuid in product(present, uuids)]
        answers = self._driver.get_many(targets)
        readings: dict[str, dict[str, Limit]] = {}
        for target, answer in answers.items():
            if isinstance(answer, Limit):
                of_leaf = readings.setdefault(target.leaf, {})
                of_leaf[target.gpu] = answer
        leaves_read = []
        for leaf, by_gpu in readings.items():
            own_id = container_id(leaf) or ""
            leaves_read.append(Leaf(leaf, names.get(own_id), by_gpu, is_new=leaf == new_leaf))
        return leaves_read

    def _repair(self, uid: str, repair: Repair, outcome: Outcome) -> None:
        target = Target(repair.uuid, uid, repair.leaf)
        try:
            result = self._driver.set(target, repair.limit)
        except NoTargetError:
            return  # it has ended
        except BelowUseError as err:
            self._not_in_force(target, repair, err.used, outcome)
            return
        except LimitsError as err:
            outcome.unlimited[repair.uuid] = str(err)
            return
        if not result.is_of(repair.limit):
            # The kernel drops a limit below the use without a word.
            self._not_in_force(target, repair, result.used, outcome)
            return
        if repair.why is not Why.NEW:
            outcome.repaired[repair.why] += 1
            extra = {"pod_uid": uid, "cgroup": repair.leaf, "gpu": repair.uuid, "bytes": repair.limit}
            log.info("Set a memory limit", extra={**extra, "why": str(repair.why)})

    def _not_in_force(self, target: Target, repair: Repair, used: int | None, outcome: Outcome) -> None:
        """A limit that the driver does not take, because more is in use."""
        # The use changes all the time, and a text with it would be an Event each time.
        text = f"it uses more GPU memory than its limit of {repair.limit // MIB} MiB"
        if repair.why is Why.RESIZED:
            outcome.refused[repair.uuid] = text
            return
        if target.leaf and self.backend is Backend.DMEM:
            return  # the pod's limit bounds it, and only the size that it is shown is wrong
        outcome.unlimited[repair.uuid] = text
        if used is None:
            return
        may_grow = repair.former is None or repair.former > used
        if may_grow:
            self._contain(target, used)

    def _contain(self, target: Target, used: int) -> None:
        """Keep a pod or a container that has too much from taking more."""
        rounded = -(-used // MIB) * MIB
        try:
            self._driver.set(target, rounded)
        except LimitsError as err:
            log.warning("Failed to contain a pod", extra={"pod_uid": target.pod, "error": str(err)})
