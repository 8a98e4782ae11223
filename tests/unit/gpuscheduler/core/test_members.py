"""The counts of a job's pods: who is there, who is bound, who comes in the place of whom, and who is extra."""

import pytest

from gpuagent.domain.sharing.mode import JOB_LABEL, REPLICAS_LABEL
from gpuscheduler.core.gangs.pod_group_labels import MINIMUM, NAME
from gpuscheduler.core.jobs.pods.members import Members
from gpuscheduler.core.jobs.pods.start import MOST_PODS, Start
from gpuscheduler.core.pod_facts import pod_facts
from tests.unit.gpuscheduler.core.api_objects import container, pod, pod_object

MORNING, NOON = "2026-01-01T06:00:00Z", "2026-01-01T12:00:00Z"


def member(uid, replicas=2, **given):
    labels = {JOB_LABEL: "j", REPLICAS_LABEL: str(replicas)}
    return pod(given.pop("name", uid), uid=uid, labels=labels, **({"mem": 1} | given))


def members_of(*pods):
    members = Members()
    for each in pods:
        members.put(each)
    return members


def ended(uid, phase="Succeeded", **given):
    return member(uid, on="n1", phase=phase, **given)


def deleting(uid):
    made = pod_object(uid, uid=uid, mem=1, labels={JOB_LABEL: "j", REPLICAS_LABEL: "9"})
    made["metadata"]["deletionTimestamp"] = NOON
    return pod_facts(made)


def test_a_pod_comes_in_the_place_of_one_with_its_controller_or_with_its_name():
    start = Start()
    start.add([member("a", name="worker-0"), member("b", name="worker-1", owner="o")])
    assert start.has(member("a", name="other"))
    assert start.has(member("a2", name="worker-0"))
    assert start.has(member("b2", name="other", owner="o"))
    assert not start.has(member("b2", name="worker-1"))
    assert not start.has(member("a2", name="worker-0", owner="other"))
    assert Start(uids={"a"}).has(member("a"))


def test_what_counts():
    none = {JOB_LABEL: "j", REPLICAS_LABEL: "2"}
    without = pod_facts(pod_object("w", container(), uid="w", labels=none))
    bad = member("x", mem="much")
    members = members_of(member("a", on="n1"), member("b"), without, bad, deleting("d"))
    assert (len(members), members.present, members.running, members.wanted) == (5, 4, 1, 2)
    assert members.replicas == {2}
    assert members.pending.keys() == {"b", "x"}
    assert members.bad() == bad
    assert [each.uid for each in members.bound()] == ["a"]
    members.put(member("b", on="n1"))
    members.remove("x")
    members.remove("gone")
    assert (len(members), members.present, members.running, members.bad()) == (4, 3, 2, None)
    assert not members.pending
    members.keep_only(["b", "d"])
    assert (len(members), members.present, members.running, members.replicas) == (2, 1, 1, {2})
    members.keep_only([])
    assert (len(members), members.wanted, members.any_bound, set(members.replicas)) == (0, 0, False, set())


def test_a_pod_that_changed_is_shown_as_it_is_now():
    members = members_of(member("a"))
    later = member("a", scheduler="later")
    version = members.version
    members.put(later)
    assert members.version == version, "nothing changes for the job"
    assert members["a"].scheduler == members.to_place()[0].scheduler == "later"


def pods_of(owner, created, *uids, **given):
    return [member(uid, owner=owner, created=created, **given) for uid in uids]


@pytest.mark.parametrize(
    ("before", "living", "succeeded", "with_failed"),
    [
        ([ended("a", owner="o")], [member("b", owner="o")], 1, 1),
        ([ended("a", "Failed", owner="o")], [member("b", owner="o")], 0, 1),
        ([ended("a", owner="other")], [member("b", owner="o")], 0, 0),
        ([ended("a", owner="o")], [member("b", owner="o"), member("c", owner="p")], 0, 0),
        ([ended("a", owner="o"), ended("b", owner="o")], [member("c", owner="o")], 0, 2),
        ([], [member("b", owner="o")], 0, 0),
    ],
    ids=["succeeded", "failed", "of another controller", "of two", "the whole job", "none"],
)
def test_ended_pods_count_for_those_that_come_in_the_place_of_others(before, living, succeeded, with_failed):
    members = members_of(*living)
    for each in before:
        members.end(each)
    assert members.ended_before() == succeeded
    assert members.ended_before(failed=True) == with_failed


def test_with_a_record_of_the_start_a_pod_of_the_same_name_comes_again():
    members = members_of(member("a", name="w-0"), member("b", name="w-1"))
    members.started(["a", "b"])
    assert (members.start.uids, members.start.names, members.start.size) == ({"a", "b"}, {"w-0", "w-1"}, 2)
    members.end(ended("a", name="w-0"))
    members.remove("b")
    members.put(member("b2", name="w-1"))
    assert members.ended_before() == 1
    members.put(member("b2", name="w-1", on="n1"))
    members.started([])
    assert "a" in members.start.uids, "it is the same job"
    members.remove("b2")
    members.put(member("c", name="z"))
    members.started(["c"])
    assert (members.start.uids, members.start.size) == ({"c"}, 1)


def test_a_pod_that_is_planned_beside_running_ones_adds_to_their_job():
    members = members_of(member("a", on="n1"), member("b"))
    members.started(["a", "b"])
    members.remove("b")
    members.put(member("c"))
    members.started(["c"])
    assert members.start.uids == {"a", "b", "c"}


def test_pods_without_gpus_start_with_the_others():
    labels = {JOB_LABEL: "j", REPLICAS_LABEL: "2"}
    without = pod_facts(pod_object("w", container(), uid="w", labels=labels))
    members = members_of(member("a"), without, member("late"))
    members.started(["a"])
    assert members.start.uids == {"a", "w"}


def test_pods_that_started_are_not_extra_beside_older_ones():
    members = members_of(*pods_of("o", NOON, "a", "b"))
    members.started(["a", "b"])
    for each in pods_of("p", MORNING, "c", "d"):
        members.put(each)
    assert members.surplus == {"c", "d"}


@pytest.mark.parametrize(("living", "expected"), [([], {"b"}), ([("a2", "o")], {"a"}), ([("b2", "p")], {"b"})])
def test_of_the_plans_that_were_written_that_of_the_pods_that_live_counts_or_the_latest(living, expected):
    known = {"a": member("a", owner="o", created=MORNING), "b": member("b", owner="p", created=NOON)}
    for plans in ([{"a"}, {"b"}], [{"b"}, {"a"}]):
        members = members_of(*[member(uid, owner=owner) for uid, owner in living])
        members.started_before(plans, known)
        assert members.start.uids == expected


def test_the_version_is_another_after_each_change():
    members = Members()
    versions = [members.version]
    for change in (
        lambda: members.put(member("a")),
        lambda: members.put(member("b")),
        lambda: members.put(member("b", on="n1")),
        lambda: members.started(["a"]),
        lambda: members.end(ended("b")),
        lambda: members.remove("a"),
    ):
        change()
        assert members.version not in versions
        versions.append(members.version)


def test_the_pods_that_ended_are_kept_up_to_a_number():
    members = Members()
    for n in range(MOST_PODS + 1):
        members.end(ended(f"p{n}"))
    assert len(members.ended) == MOST_PODS
    assert "p0" not in members.ended


@pytest.mark.parametrize(
    ("first", "second", "extra"),
    [
        (pods_of("o", MORNING, "a", "b"), pods_of("p", NOON, "c", "d"), {"c", "d"}),
        (pods_of("o", NOON, "a", "b"), pods_of("p", MORNING, "c", "d"), {"a", "b"}),
        (pods_of("o", MORNING, "a", "b"), pods_of("p", NOON, "c", "d", on="n1"), {"a", "b"}),
        (pods_of("o", MORNING, "a"), pods_of("p", NOON, "c"), set()),
        (pods_of("o", MORNING, "a", "b", "c"), [], set()),
        (pods_of("o", MORNING, "a", "b"), pods_of(None, NOON, "c"), set()),
        (pods_of("o", MORNING, "a", "b", "c", replicas=3), pods_of("p", NOON, "d"), set()),
        (pods_of("o", MORNING, "a", "b"), pods_of("p", NOON, "c", replicas="x"), set()),
    ],
    ids=[
        "later",
        "earlier",
        "bound",
        "no more than wanted",
        "one controller",
        "no controller",
        "unequal numbers",
        "no number",
    ],
)
def test_pods_beyond_the_number_are_of_another_job_if_their_controller_is(first, second, extra):
    members = members_of(*first, *second)
    assert members.surplus == extra
    assert {each.uid for each in [*members.bound(), *members.to_place()]} == members.living.keys() - extra


@pytest.mark.parametrize("owners", ["oooo", "opop"], ids=["of one controller", "of two"])
def test_no_pod_of_a_group_that_has_a_minimum_is_extra(owners):
    """For example, a parameter server and workers that have controllers of their own."""
    labels = {NAME: "train", MINIMUM: "2"}
    group = [pod(uid, uid=uid, whole=1, labels=labels, owner=owner) for uid, owner in zip("abcd", owners, strict=True)]
    members = members_of(*group)
    assert members.wanted == 2
    assert members.surplus == set()
    assert len(members.to_place()) == 4
