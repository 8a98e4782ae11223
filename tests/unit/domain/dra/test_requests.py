"""Amounts that nobody can mean, and configuration for the driver, are refused with what was probably meant."""

import pytest

from gpuagent.domain.dra.prepare import claimed_gpus
from gpuagent.domain.refusal import Reason, Refusal
from gpuagent.domain.sharing.mode import DRA_DRIVER
from tests.unit.domain.dra.test_prepare import GPUS, UNIT, claim, result


def asking(*results, config=(), given=(), **amounts):
    """A claim that names these amounts, as the scheduler allocated it."""
    asked = claim(*(results or (result(0),)))
    asked["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = {"requests": amounts}
    asked["spec"]["devices"]["config"] = list(config)
    asked["status"]["allocation"]["devices"]["config"] = list(given)
    return asked


def refusal_of(asked):
    with pytest.raises(Refusal) as caught:
        claimed_gpus(asked, "n", GPUS, UNIT)
    assert caught.value.reason is Reason.CLAIM_INVALID
    return caught.value.message


@pytest.mark.parametrize(
    ("memory", "meant"),
    [
        ("8", "8Gi"),
        (8, "8Gi"),
        ("0", "1Gi"),
        (0, "1Gi"),
        ("-1Gi", "1Gi"),
        ("-16Gi", "16Gi"),
        ("8k", "8Gi"),
        ("8Ki", "8Gi"),
        ("8m", "8Gi"),
        ("008", "8Gi"),
        ("80000", "80000Gi"),
        ("999999", "1Gi"),
        ("1e3", "1Gi"),
        ("", "1Gi"),
        ("eight", "1Gi"),
        (["8Gi"], "1Gi"),
    ],
)
def test_memory_below_a_mib_is_refused_with_what_was_meant(memory, meant):
    assert refusal_of(asking(memory=memory)).endswith(f"did you mean {meant}?")


@pytest.mark.parametrize("memory", ["1Mi", "512Mi", "1Gi", "1.5Gi", "8G", "8589934592", "4e9"])
def test_memory_that_can_be_meant_is_rounded_by_the_scheduler(memory):
    assert claimed_gpus(asking(memory=memory), "n", GPUS, UNIT)


@pytest.mark.parametrize(
    ("cores", "meant"),
    [
        ("-5", "5"),
        ("101", "100"),
        ("0.3", "30"),
        ("0.05", "05"),
        ("300m", "30"),
        ("1k", "1"),
        ("30Gi", "30"),
        ("", "100"),
        ("x", "100"),
    ],
)
def test_cores_that_are_no_percentage_are_refused(cores, meant):
    expected = meant.lstrip("0")
    assert refusal_of(asking(memory="4Gi", cores=cores)).endswith(f"did you mean {expected}?")


@pytest.mark.parametrize("cores", ["0", "7", "100", 30])
def test_cores_that_are_a_percentage_are_rounded_by_the_scheduler(cores):
    assert claimed_gpus(asking(memory="4Gi", cores=cores), "n", GPUS, UNIT)


@pytest.mark.parametrize("sharers", ["0", 0, "2", "-1", ""])
def test_a_claim_counts_as_one_sharer(sharers):
    """With none, any number of claims would have the GPU by the scheduler's count."""
    words = f"the claim asks for sharers {sharers}, and counts as 1 of the claims that share a GPU"
    assert refusal_of(asking(memory="4Gi", sharers=sharers)).startswith(words)


@pytest.mark.parametrize("sharers", ["1", 1])
def test_one_sharer_is_what_a_claim_has_anyway(sharers):
    assert claimed_gpus(asking(memory="4Gi", sharers=sharers), "n", GPUS, UNIT)


def test_a_monitor_asks_for_nothing_of_a_gpu():
    asked = asking(result(0, adminAccess=True, consumedCapacity={"memory": "0", "sharers": "0"}), memory="0", sharers=0)
    asked["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] = True
    (monitor,) = claimed_gpus(asked, "n", GPUS, UNIT)
    assert (monitor.admin, monitor.memory_mib) == (True, 0)


def test_only_requests_that_have_a_device_here_are_checked():
    """A claim may ask another driver for amounts that mean something else."""
    asked = asking(memory="4Gi")
    other = {"deviceClassName": "nic.example.com", "capacity": {"requests": {"memory": "8"}}}
    asked["spec"]["devices"]["requests"].append({"name": "nic", "exactly": other})
    assert claimed_gpus(asked, "n", GPUS, UNIT)


def test_the_chosen_alternative_is_checked():
    asked = claim(result(0, request="gpu/small"))
    small = {"name": "small", "deviceClassName": "gpu-share.gpuagent.io", "capacity": {"requests": {"memory": "8"}}}
    large = {"name": "large", "deviceClassName": "gpu-share.gpuagent.io"}
    asked["spec"]["devices"]["requests"] = [{"name": "gpu", "firstAvailable": [large, small]}]
    assert "did you mean 8Gi?" in refusal_of(asked)
    asked["status"]["allocation"]["devices"]["results"][0]["request"] = "gpu/large"
    assert claimed_gpus(asked, "n", GPUS, UNIT)


def opaque(driver):
    return {"opaque": {"driver": driver, "parameters": {"sharing": "mps"}}}


def test_configuration_for_this_driver_is_refused_and_that_of_others_is_not():
    for asked in (asking(config=[opaque(DRA_DRIVER)]), asking(given=[opaque("x"), opaque(DRA_DRIVER)])):
        assert "which takes none" in refusal_of(asked)
    assert claimed_gpus(asking(config=[opaque("nic.example.com")]), "n", GPUS, UNIT)


@pytest.mark.parametrize(
    ("consumed", "words"),
    [
        ({"memory": "8"}, "has 8 of memory, and the node shares out units of GiB"),
        ({"memory": "512Mi"}, "has 512Mi of memory, and the node shares out units of GiB"),
        ({"memory": "17Gi"}, "has 17Gi of memory, and GPU 0 has 16384 MiB"),
        ({"memory": "4Gi", "cores": "101"}, "has 101 cores, and a GPU has 100"),
        ({"memory": "4Gi", "cores": "9223372036854775807"}, "cores are percent of its compute"),
    ],
)
def test_an_allocation_that_no_gpu_can_give_is_refused(consumed, words):
    """The unit was changed since, or another version of the agent published the slice."""
    assert words in refusal_of(claim(result(0, consumedCapacity=consumed)))
