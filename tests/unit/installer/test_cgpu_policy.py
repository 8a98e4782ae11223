"""Policies, max_inst and weights: shown, set, refused, put back, remembered."""

import pytest

from gpuisolation import cgpu_policy
from tests.unit.installer.fakehost import CONTAINER

NAME = CONTAINER[:12]


def values(host, name: str) -> list[str]:
    return [(host.root / f"proc/cgpu_km/{gpu}/{name}").read_text().strip() for gpu in (0, 1)]


def test_the_policies_are_shown(installed, run):
    installed.instance(gpu=1, weight=4)
    lines = run("policy").out.splitlines()
    assert lines[0].split() == ["GPU", "POLICY", "NAME", "MAX_INST", "FREE_WEIGHT", "INSTANCES"]
    assert lines[1].split() == ["0", "5", "native", "20", "100", "-"]
    assert lines[2].split(maxsplit=5) == ["1", "5", "native", "20", "100", f"{NAME} (weight 4)"]
    assert run("policy", "-o", "json").json[1]["instances"][0]["weight"] == 4


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("soft", 4), ("weight-based-preemptive", 2), ("5", 5)])
def test_a_policy_is_set_on_every_gpu_by_number_or_name(installed, run, text, number):
    result = run("policy", "--set", text)
    assert result.code == 0
    assert values(installed, "policy") == [str(number)] * 2
    assert "all shared nodes of a cluster must have the same policy" in result.out


def test_one_gpu_alone_and_its_instances(installed, run):
    assert run("policy", "--set", "3", "--max-inst", "25", "--gpu", "1").code == 0
    assert (values(installed, "policy"), values(installed, "max_inst")) == (["5", "3"], ["20", "25"])


@pytest.mark.parametrize("flag", [("--set", "3"), ("--max-inst", "10")])
def test_refused_while_work_runs_and_says_whose(installed, run, flag):
    installed.instance(gpu=1)
    result = run("policy", *flag)
    assert result.code == 3
    assert f"GPU 1: container {NAME}" in result.err
    assert values(installed, "policy") == ["5", "5"]
    assert values(installed, "max_inst") == ["20", "20"]
    assert run("policy", *flag, "--gpu", "0").code == 0


def test_what_is_in_force_already_may_be_asked_for_while_work_runs(installed, run):
    installed.instance()
    result = run("policy", "--set", "5")
    assert result.code == 0
    assert result.out.startswith("all shared nodes")


def test_weights_are_set_while_work_runs_as_far_as_there_is_weight_left(installed, run):
    installed.instance(weight=4)
    installed.write("proc/cgpu_km/0/free_weight", "6\n")
    assert run("policy", "--weight", f"{NAME}=10").code == 0
    assert (installed.root / f"proc/cgpu_km/0/{NAME}/weight").read_text() == "10"
    result = run("policy", "--weight", f"{CONTAINER}=17")
    assert result.code == 3
    assert f"GPU 0 has 6 of its weight left, {NAME} would need 7 more" in result.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--set", "6"), "'6' is none of the policies: 0 (fair-share)"),
        (("--set", "best"), "'best' is none of the policies"),
        (("--max-inst", "0"), "--max-inst 0: cGPU 1.5.10 takes 1 to 25"),
        (("--max-inst", "26"), "takes 1 to 25"),
        (("--gpu", "7", "--set", "1"), "--gpu 7: cGPU has GPUs 0, 1"),
        (("--weight", f"{NAME}=0"), "wanted 1 to 999"),
        (("--weight", f"{NAME}=1000"), "wanted 1 to 999"),
        (("--weight", "ffffffffffff=1"), f"no such instance (12 characters of a container's id); there are: {NAME}"),
        (("--weight", "3f=1"), "no such instance"),
        (("--weight", "nonsense"), "wanted INSTANCE=N"),
    ],
)
def test_mistakes_are_reported(installed, run, arguments, expected):
    installed.instance()
    result = run("policy", *arguments)
    assert result.code == 2
    assert expected in result.err


def test_without_the_module_there_is_no_policy(run):
    for arguments in ((), ("--set", "1")):
        result = run("policy", *arguments)
        assert result.code == 1
        assert "cGPU is not loaded" in result.err


@pytest.mark.parametrize("version", ["1.0.5", "0.8.8"])
def test_a_version_that_must_not_be_used_is_not_set(installed, run, version):
    installed.write("proc/cgpu_km/version", f"{version}\n")
    result = run("policy", "--set", "1")
    assert result.code == 3
    assert f"cGPU {version} is known to be bad" in result.err


def test_a_version_that_keeps_its_policy_is_not_written_to(monkeypatch):
    from gpuagent.host import cgpu_proc
    from gpuagent.host.cgpu_proc import CgpuGpu, CgpuState, Version
    from gpuisolation.errors import RefusedError

    monkeypatch.setattr(cgpu_proc, "KNOWN_BAD", ())
    state = CgpuState(version=Version(1, 0, 5), gpus=(CgpuGpu(index=0, policy=0, max_inst=16),))
    with pytest.raises(RefusedError, match=r"keeps its policy; 1\.0\.6 or later can change it"):
        cgpu_policy.writes(state, cgpu_policy.NewSettings(policy=1))
    old = CgpuState(version=Version(0, 8, 8), gpus=state.gpus)
    with pytest.raises(Exception, match="takes 1 to 16"):
        cgpu_policy.writes(old, cgpu_policy.NewSettings(max_inst=17))


def test_a_value_the_module_does_not_take_puts_all_back(installed, run):
    stubborn = installed.root / "proc/cgpu_km/1/policy"
    stubborn.unlink()
    stubborn.mkdir()
    result = run("policy", "--set", "3")
    assert result.code == 1
    assert "does not take '3'" in result.err
    assert (installed.root / "proc/cgpu_km/0/policy").read_text() == "5"


def test_a_dry_run_writes_nothing(installed, run):
    before = installed.tree(), installed.state()
    result = run("policy", "--set", "1", "--dry-run")
    assert result.code == 0
    assert "would write:\n/proc/cgpu_km/0/policy: 5 -> 1\n" in result.out
    assert (installed.tree(), installed.state()) == before


def test_what_was_set_is_noted_for_the_next_load(installed, run):
    assert run("policy", "--set", "1", "--max-inst", "10").code == 0
    installed.reboot()
    assert run("install").code == 0
    assert (values(installed, "policy"), values(installed, "max_inst")) == (["1", "1"], ["10", "10"])


def test_a_gpu_without_anything_to_set_is_a_mistake(installed, run):
    result = run("policy", "--gpu", "0")
    assert result.code == 2
    assert "say what with --set" in result.err
