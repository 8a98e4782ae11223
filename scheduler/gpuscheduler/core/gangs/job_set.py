"""JobSet: its pods start together, as far as its controller creates them together.

These are the rules:

- The whole set is a gang: if one Job of a JobSet fails, all of them are started again, so none is of use alone.
- With `startupPolicy: InOrder` or `dependsOn`, later Jobs are created when earlier ones are ready. The whole set would
  wait for ever, so each entry of `replicatedJobs` is a gang.
- With exclusive topology, the other pods of a Job are created when its first pod has a node, so each pod starts alone.
  With the node selectors that JobSet offers instead, this is not so.
- The annotation `gpuagent.io/gang: job` in a pod template makes each Job of that entry a gang.
- Labels that name a gang in a pod template say another number. A gang never has pods that are created only after its
  first ones have started, whatever their number says: with an order it ends with its entry, and with exclusive topology
  each pod starts alone.

Only pods that ask for GPUs count: nothing is gained if the others wait. Those whose template names another gang are of
that one.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, NamedTuple

from gpuagent.domain.pods.json_values import mapping, mapping_at, mappings, text
from gpuagent.domain.sharing.mode import JOB_LABEL
from gpuscheduler.core.gangs.gang import Gang, GangSource
from gpuscheduler.core.gangs.gang_object import (
    EACH_JOB,
    GANG_ANNOTATION,
    POD_GROUP_LABEL,
    GangRef,
    ObjectKey,
    identity,
    number_or_one,
    pods_at_once,
    starts_with_workload,
)
from gpuscheduler.core.gangs.kinds import ObjectKind
from gpuscheduler.core.gangs.labels import part_of

NAME = "jobset.sigs.k8s.io/jobset-name"
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
JOB_INDEX = "jobset.sigs.k8s.io/job-index"
UID = "jobset.sigs.k8s.io/jobset-uid"
RESTARTS = "jobset.sigs.k8s.io/restart-attempt"
"""How often the whole set was started again."""
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
NODE_SELECTORS = "alpha.jobset.sigs.k8s.io/node-selector"
CONTROLLER = "Job"
"""Kind of the controller of each pod of a JobSet."""


class Together(Enum):
    """Which pods of an entry of `replicatedJobs` start together."""

    SET = auto()
    """They start with those of the other entries."""
    ENTRY = auto()
    """All pods of the entry."""
    JOB = auto()
    """Those of each Job."""
    NONE = auto()
    """Each starts alone."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of `spec.replicatedJobs`.

    Attributes:
        together: which of its pods start together.
        jobs: how many Jobs it has.
        job_pods: how many pods each Job runs at one time.
        label: the value of this project's label in its template; empty if it has none.
        pod_group: the value of the coscheduling plugin's label there; empty if it has none.
        is_exclusive: its pods are created one after another.
    """

    together: Together
    jobs: int
    job_pods: int
    label: str
    pod_group: str
    is_exclusive: bool

    @property
    def pods(self) -> int:
        """How many pods it runs at one time."""
        return self.jobs * self.job_pods


def job_set_ref(
    labels: Mapping[str, str],
    controller: str,
    own: Gang | None = None,
) -> GangRef | None:
    """What a pod says about its place in a JobSet; None if it has none.

    `controller` is the kind of the pod's controller. `own` is the gang of this project's labels, which the template has
    given to all of its pods.
    """
    name = labels.get(NAME)
    entry = labels.get(REPLICATED_JOB, "")
    if not name or controller != CONTROLLER:
        return None
    index = labels.get(JOB_INDEX, "")
    return GangRef(
        ObjectKind.JOB_SET,
        name,
        Gang(GangSource.JOB_SET, name, None),
        role=entry,
        instance=f"{name}-{entry}-{index}",
        run=f"{labels[UID]}/{labels.get(RESTARTS)}" if UID in labels else "",
        fallback=own,
    )


class Labeled(NamedTuple):
    """The entries of a JobSet whose template has this project's label with one value.

    Attributes:
        entries: how many.
        pods: how many pods they run at one time.
    """

    entries: int
    pods: int

    def has(self, number: int, pods: int) -> bool:
        """Whether the number of the labels is meant for a part of the set that has so many pods.

        It may be smaller, if not all of them have to start together. But with several entries, it may be that of
        another one, or of all.
        """
        return number <= pods if self.entries == 1 else number == pods


NONE_LABELED = Labeled(0, 0)


class Grouped(NamedTuple):
    """The entries of a JobSet whose template names one PodGroup.

    Attributes:
        job_pods: how many pods each of their Jobs runs at one time, or more.
        entry_pods: how many pods each of the entries runs at one time, or more.
        pods: how many all of them run.
    """

    job_pods: int
    entry_pods: int
    pods: int


NONE_GROUPED = Grouped(0, 0, 0)


@dataclass(frozen=True, slots=True)
class JobSet:
    """A JobSet object.

    Attributes:
        key: namespace and name.
        uid: its UID.
        entries: of `spec.replicatedJobs` by name. There may be thousands.
        pods: how many pods start together as the whole set.
        in_all: how many pods it runs at one time.
        labeled: by value of this project's label, the entries whose template has it.
        grouped: by name of a PodGroup, the entries whose template names it. The empty name has all entries.
        has_order: entries are created one after another.
    """

    key: ObjectKey
    uid: str
    entries: Mapping[str, Entry]
    pods: int
    in_all: int
    labeled: Mapping[str, Labeled]
    grouped: Mapping[str, Grouped]
    has_order: bool

    @property
    def all_entries(self) -> Labeled:
        """All entries, as if they had the label."""
        return Labeled(len(self.entries), self.in_all)

    def gang_of(self, ref: GangRef) -> Gang | None:
        """The gang of a pod that asks for GPUs."""
        entry = self.entries.get(ref.role)
        if ref.fallback:
            return self._gang_by_label(ref.fallback, entry, ref)
        if entry is None:
            return None
        match entry.together:
            case Together.SET:
                return Gang(GangSource.JOB_SET, ref.name, self.pods)
            case Together.ENTRY:
                return Gang(GangSource.REPLICATED_JOB, f"{ref.name}/{ref.role}", entry.pods)
            case Together.JOB:
                return Gang(GangSource.CHILD_JOB, ref.instance, entry.job_pods)
            case Together.NONE:
                return None

    def _gang_by_label(
        self,
        own: Gang,
        entry: Entry | None,
        ref: GangRef,
    ) -> Gang | None:
        """The gang of this project's labels: that of one Job, entry or set, if their number is its number of pods.

        Otherwise a template that makes several Jobs would start parts of each of them.
        """
        if entry is None or own.pods is None:
            return own
        return None if entry.is_exclusive else self._part_by_number(own, own.pods, entry, ref)

    def _part_by_number(
        self,
        own: Gang,
        number: int,
        entry: Entry,
        ref: GangRef,
    ) -> Gang:
        # If something other than the templates has written the labels, it may have done so on all pods.
        labeled = self.labeled.get(own.name) if entry.label else self.all_entries
        labeled = labeled or NONE_LABELED
        if labeled.has(number, entry.job_pods):
            return part_of(own, ref.instance)
        if labeled.has(number, entry.pods):
            return part_of(own, f"{ref.name}/{ref.role}")
        if self.has_order:
            return _within(entry, own, f"{ref.name}/{ref.role}")
        if number > labeled.pods:
            # Pods outside of the set are meant as well.
            return own
        # The set's own name is not said twice.
        is_named_alike = own.name == ref.name
        return replace(own, has_no_namesake=True) if is_named_alike else part_of(own, ref.name)

    def gang_by_pod_group(self, group: Gang, ref: GangRef) -> Gang | None:
        """The gang of a pod whose template names a PodGroup, which is `group`.

        The PodGroup says how many pods start together at least. It is meant for each Job, if each Job of which the
        template names it has so many; otherwise for each entry, or for the set. A number that counts pods outside of
        the set is meant for all pods of the PodGroup.
        """
        entry = self.entries.get(ref.role)
        if entry is None or group.minimum is None:
            return group
        return None if entry.is_exclusive else self._part_by_minimum(group, group.minimum, entry, ref)

    def _part_by_minimum(
        self,
        group: Gang,
        minimum: int,
        entry: Entry,
        ref: GangRef,
    ) -> Gang:
        # If something other than the templates has written the label, it may have done so on all pods.
        of_group = self.grouped.get(group.name if entry.pod_group else "", NONE_GROUPED)
        if minimum <= of_group.job_pods:
            return part_of(group, ref.instance)
        if minimum <= of_group.entry_pods:
            return part_of(group, f"{ref.job_set}/{ref.role}")
        if self.has_order:
            return _within(entry, group, f"{ref.job_set}/{ref.role}")
        is_for_more = minimum > of_group.pods
        is_named_alike = group.name == ref.job_set
        return group if is_for_more or is_named_alike else part_of(group, ref.job_set)


def _within(entry: Entry, gang: Gang, name: str) -> Gang:
    """The part of a gang that one entry has. The pods of others are created when these have started."""
    pods = entry.pods if gang.pods is None else min(gang.pods, entry.pods)
    minimum = None if gang.minimum is None else min(gang.minimum, entry.pods)
    return replace(part_of(gang, name), pods=pods, minimum=minimum)


def read_job_set(found: Mapping[str, Any]) -> JobSet:
    """Read an object (decoded JSON)."""
    key, uid = identity(ObjectKind.JOB_SET, found)
    spec = mapping(found.get("spec"))
    replicated_jobs = list(mappings(spec.get("replicatedJobs")))
    has_order = _has_order(spec, replicated_jobs)
    # If an entry waits for another one, its pods are created later, so that waiting for all pods would never end.
    together = Together.ENTRY if has_order else Together.SET
    annotations = mapping_at(found, "metadata", "annotations")
    is_exclusive = _is_exclusive(annotations)
    by_name: dict[str, Entry] = {}
    for replicated_job in replicated_jobs:
        name = text(replicated_job.get("name"))
        by_name[name] = _entry(replicated_job, together, is_exclusive=is_exclusive)
    entries = by_name.values()
    started_together = [entry for entry in entries if entry.together is Together.SET]
    pods_together = sum(entry.pods for entry in started_together)
    pods_in_all = sum(entry.pods for entry in entries)
    return JobSet(
        key,
        uid,
        by_name,
        pods_together,
        pods_in_all,
        _labeled(entries),
        _grouped(entries),
        has_order=has_order,
    )


def _has_order(spec: Mapping[str, Any], replicated_jobs: Iterable[Mapping[str, Any]]) -> bool:
    """Whether an entry waits for another one."""
    startup = mapping(spec.get("startupPolicy"))
    is_in_order = startup.get("startupPolicyOrder") == "InOrder"
    return is_in_order or any(job.get("dependsOn") for job in replicated_jobs)


def _labeled(entries: Iterable[Entry]) -> dict[str, Labeled]:
    """By value of this project's label, the entries whose template has it."""
    labeled: dict[str, Labeled] = {}
    for entry in entries:
        if entry.label:
            former = labeled.get(entry.label, NONE_LABELED)
            labeled[entry.label] = Labeled(former.entries + 1, former.pods + entry.pods)
    return labeled


def _grouped(entries: Collection[Entry]) -> dict[str, Grouped]:
    """By name of a PodGroup, the entries whose template names it; all entries by the empty name."""
    grouped: dict[str, Grouped] = {}
    for entry in entries:
        for name in {entry.pod_group, ""}:
            own = Grouped(entry.job_pods, entry.pods, entry.pods)
            grouped[name] = _both(grouped[name], own) if name in grouped else own
    return grouped


def _both(former: Grouped, entry: Grouped) -> Grouped:
    job_pods = min(former.job_pods, entry.job_pods)
    entry_pods = min(former.entry_pods, entry.entry_pods)
    return Grouped(job_pods, entry_pods, former.pods + entry.pods)


def _entry(
    replicated_job: Mapping[str, Any],
    together: Together,
    *,
    is_exclusive: bool,
) -> Entry:
    job = mapping(replicated_job.get("template"))
    job_spec = mapping(job.get("spec"))
    pod = mapping(job_spec.get("template"))
    wish = mapping_at(pod, "metadata", "annotations").get(GANG_ANNOTATION)
    is_exclusive = is_exclusive or _is_exclusive(mapping_at(job, "metadata", "annotations"))
    if is_exclusive or not starts_with_workload(pod):
        together = Together.NONE
    elif wish == EACH_JOB:
        together = Together.JOB
    jobs = number_or_one(replicated_job.get("replicas"))
    labels = mapping_at(pod, "metadata", "labels")
    return Entry(
        together,
        jobs,
        pods_at_once(job_spec),
        label=text(labels.get(JOB_LABEL)),
        pod_group=text(labels.get(POD_GROUP_LABEL)),
        is_exclusive=is_exclusive,
    )


def _is_exclusive(annotations: Mapping[str, Any]) -> bool:
    """Whether pods are created one after another, because the node of a Job's first pod decides on the others."""
    return EXCLUSIVE in annotations and NODE_SELECTORS not in annotations
