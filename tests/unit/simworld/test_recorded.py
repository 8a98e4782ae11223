"""What a recording of a real node is held against."""

import json

import pytest

from gpuagent.domain.gpus.gpu import key_of
from simworld.lifetimes import Lifetimes
from simworld.recorded import RecordedNode, check, main

GPU = "GPU-35971be6-e9bb-024a-8955-82fe0e420000"
OTHER = "GPU-46971be6-e9bb-024a-8955-82fe0e420001"
ALLOCATION = "scheduler.framework.gpushare.allocation"
MEM = "aliyun.com/gpu-mem"
WHOLE = "aliyun.com/gpu"


def pod(uid, amount=2, *, resource=MEM, decision="", node="gpu-node", listed=False, sets=(), **status):
    container = {"name": "main", "asks": {resource: amount}, "sets": list(sets)}
    return {
        "at": 1.0,
        "kind": "pod",
        "uid": uid,
        "name": f"default/{uid}",
        "node": node,
        "annotations": {ALLOCATION: decision} if decision else {},
        "containers": [container],
        "init": [],
        "gone": False,
        "listed": listed,
        "phase": "Pending",
        "reason": "",
        "message": "",
        **status,
    }


def environment(gpu, amount, index="0"):
    return {
        "NVIDIA_VISIBLE_DEVICES": gpu,
        "ALIYUN_COM_GPU_MEM_IDX": index,
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(amount),
        "ALIYUN_COM_GPU_MEM_DEV": "4",
    }


def given(uid, ids, env, resource=MEM):
    return {
        "at": 2.0,
        "kind": "given",
        "uid": uid,
        "container": "main",
        "resources": {resource: {"ids": ids, "env": env}},
    }


def units(gpu, *numbers, kind="ms"):
    return [f"{key_of(gpu)}-{kind}-{number}" for number in numbers]


def running(*started, ended=()):
    rows = [{"uid": uid, "container": "main", "env": env} for uid, env in started]
    return {"at": 3.0, "kind": "running", "started": rows, "ended": [[uid, "main"] for uid in ended]}


def broken(*lines):
    return reading(*lines).history.broken


def reading(*lines):
    node = RecordedNode("node", Lifetimes.of(lines))
    node.read(lines)
    return node


def shares(uid, numbers, gpu=GPU):
    """The lines of a pod that has these units of a GPU."""
    env = environment(gpu, len(numbers))
    return [pod(uid, len(numbers)), given(uid, units(gpu, *numbers), env)], (uid, env)


def test_pods_that_share_a_gpu_break_nothing():
    first, first_runs = shares("a", (0, 1))
    second, second_runs = shares("b", (2, 3))
    assert not broken(*first, *second, running(first_runs, second_runs))


def test_a_unit_of_two_containers_that_ran_at_one_moment():
    first, first_runs = shares("a", (0, 1))
    second, second_runs = shares("b", (1, 2))
    (problem,) = broken(*first, *second, running(first_runs), running(second_runs))
    assert "has two living containers" in problem


def test_a_unit_may_go_from_a_container_that_has_ended_to_the_next():
    first, first_runs = shares("a", (0, 1))
    second, second_runs = shares("b", (1, 2))
    assert not broken(*first, *second, running(first_runs), running(second_runs, ended=["a"]))


FORMER, FORMER_RUNS = shares("former", (0, 1))
FORMER_ADMITTED = pod("former", 2, phase="Running")
NEXT, NEXT_RUNS = shares("next", (1, 2))
NEXT_ADMITTED = pod("next", 2, phase="Running")


def deleted(uid="former", phase="Running", **status):
    return pod(uid, 2, phase=phase, gone=True, grace_s=30, **status)


def test_kubelet_gives_units_of_a_pod_that_was_deleted_by_force_while_it_runs():
    node = reading(*FORMER, running(FORMER_RUNS), deleted(), *NEXT, NEXT_ADMITTED, running(NEXT_RUNS))
    assert not node.history.broken
    assert "1 pods began beside one that was deleted by force; left out: none" in node.checked.words()


def test_the_order_of_the_api_server_counts_and_not_the_moment_at_which_its_watch_tells():
    early_look = [*FORMER, running(FORMER_RUNS), *NEXT, running(NEXT_RUNS)]
    assert not broken(*early_look, deleted(), NEXT_ADMITTED)
    # The recording ends, and nobody knows the order.
    assert not broken(*early_look, deleted())


def test_a_container_of_a_deleted_pod_that_starts_late():
    assert not broken(*FORMER, deleted(), *NEXT, NEXT_ADMITTED, running(NEXT_RUNS), running(FORMER_RUNS))


def test_memory_of_a_pod_that_was_deleted_by_force_does_not_count():
    large, large_runs = shares("next", (0, 1, 2))
    admitted = pod("next", 3, phase="Running")
    assert not broken(*FORMER, running(FORMER_RUNS), deleted(), *large, admitted, running(large_runs))


@pytest.mark.parametrize(
    "lines",
    [
        [NEXT_ADMITTED],
        [deleted(phase="Succeeded") | {"at": 4.0}, NEXT_ADMITTED],
        [NEXT_ADMITTED, deleted(phase="Failed", ended=True) | {"at": 4.0}],
        [NEXT_ADMITTED, deleted(phase="Failed", ended=False)],
        [NEXT_ADMITTED, deleted()],
        [NEXT_ADMITTED, deleted(listed=True)],
        [deleted("next"), deleted()],
    ],
    ids=[
        "not deleted",
        "ended after the look",
        "ended after the look, and later than the next one began",
        "failed later",
        "deleted later",
        "deleted later, which was not seen",
        "deleted after the next one",
    ],
)
def test_nothing_else_lets_two_containers_have_a_unit(lines):
    problems = broken(*FORMER, FORMER_ADMITTED, running(FORMER_RUNS), *lines, *NEXT, running(NEXT_RUNS))
    assert any("has two living containers" in problem for problem in problems)


def test_two_containers_that_live_on_may_not_have_a_unit_because_a_third_one_was_deleted_by_force():
    another, another_runs = shares("another", (2, 3))
    problems = broken(
        *FORMER,
        running(FORMER_RUNS),
        deleted(),
        *another,
        running(another_runs),
        *NEXT,
        NEXT_ADMITTED,
        running(NEXT_RUNS),
    )
    assert any("another and next" in problem for problem in problems)


@pytest.mark.parametrize(
    ("released", "doubt"),
    [
        (deleted(listed=True), "was deleted while no watch was open"),
        (deleted() | {"at": -100.0}, "was deleted by force and runs on for longer than kubelet should need"),
        (pod("former", phase="Failed", reason="UnexpectedAdmissionError", message="no GPU", ended=False), "has failed"),
        (deleted(phase="Failed", ended=False), "nobody has reported that its containers had ended"),
        (deleted(phase="Succeeded", ended=True), "runs, and kubelet had reported that its containers had ended"),
    ],
    ids=["in a gap of the watch", "long ago", "rejected while it runs", "failed by a controller", "runs after its end"],
)
def test_what_is_not_certain_is_told_and_is_no_failure(released, doubt):
    """Each may happen on a busy machine, or when kubelet or API server were restarted."""
    node = reading(*FORMER, FORMER_ADMITTED, running(FORMER_RUNS), released, *NEXT, NEXT_ADMITTED, running(NEXT_RUNS))
    assert not node.history.broken
    (told,) = node.history.doubts
    assert doubt in told
    assert "0 pods began beside" in node.checked.words()


def test_a_clock_that_goes_back_is_no_failure():
    early = [line | {"at": -5.0} for line in (*NEXT, NEXT_ADMITTED, running(NEXT_RUNS))]
    assert not broken(*FORMER, running(FORMER_RUNS), deleted(), *early)


def test_a_look_that_is_written_late_counts_at_its_moment():
    """It saw both containers, and the watch told the end of one before its line was written."""
    end = deleted(phase="Failed", ended=True) | {"at": 4.0}
    late = running(NEXT_RUNS) | {"at": 3.5}
    problems = broken(*FORMER, FORMER_ADMITTED, running(FORMER_RUNS), *NEXT, end, NEXT_ADMITTED, late)
    assert any("has two living containers" in problem for problem in problems)


def test_the_end_of_a_container_that_is_seen_late_is_no_failure():
    """A look tells ends and starts of one moment, however long the former look is ago."""
    second, second_runs = shares("b", (1, 2))
    ends = running(second_runs, ended=["former"]) | {"at": 90.0}
    assert not broken(*FORMER, running(FORMER_RUNS), *second, ends)


def test_containers_that_were_never_seen_to_run_break_nothing():
    """A recording that is cut, for example: kubelet's checkpoint alone does not say that a container runs."""
    assert not broken(*FORMER, *NEXT, running(NEXT_RUNS))


def test_more_memory_than_a_gpu_has():
    first, first_runs = shares("a", (0, 1, 2))
    env = environment(GPU, 2)
    second = [pod("b", 2), given("b", units(GPU, 0, 1, kind="mc"), env)]
    (problem,) = broken(*first, *second, running(first_runs, ("b", env)))
    assert f"5 of 4 units of {GPU}" in problem


def test_memory_of_several_gpus():
    env = environment(GPU, 2) | {"NVIDIA_VISIBLE_DEVICES": f"{GPU},{OTHER}", "ALIYUN_COM_GPU_MEM_CONTAINER": "3,2"}
    ids = [*units(GPU, 0, 1, 2, kind="mm"), *units(OTHER, 0, 1, kind="mm")]
    both = [pod("a", 5), given("a", ids, env)]
    second, second_runs = shares("b", (0,))
    assert not broken(*both, *second, running(("a", env), second_runs))
    third, third_runs = shares("c", (1,))
    (problem,) = broken(*both, *second, *third, running(("a", env), second_runs, third_runs))
    assert f"5 of 4 units of {GPU}" in problem


@pytest.mark.parametrize(("sizes", "is_broken"), [("4,8", True), ("4,8,6", False)])
def test_memory_of_gpus_of_different_sizes(sizes, is_broken):
    env = environment(GPU, 3) | {"NVIDIA_VISIBLE_DEVICES": f"{GPU},{OTHER}", "ALIYUN_COM_GPU_MEM_DEV": sizes}
    ids = [*units(GPU, 0, 1, 2, kind="mm"), *units(OTHER, 0, 1, 2, kind="mm")]
    second, second_runs = shares("b", (0, 1))
    assert bool(broken(pod("a", 6), given("a", ids, env), *second, running(("a", env), second_runs))) == is_broken


def test_a_whole_gpu_beside_a_share():
    first, first_runs = shares("a", (0, 1))
    env = {"NVIDIA_VISIBLE_DEVICES": GPU}
    second = [pod("b", 1, resource=WHOLE), given("b", units(GPU, 0, kind="gt"), env, WHOLE)]
    (problem,) = broken(*first, *second, running(first_runs, ("b", env)))
    assert "is whole for one of" in problem


def test_another_gpu_than_the_units_are_of():
    env = environment(OTHER, 2)
    problems = broken(pod("a"), given("a", units(GPU, 0, 1), env), running(("a", env)))
    assert any("names" in problem for problem in problems)


def test_less_than_was_asked_for():
    env = environment(GPU, 1)
    (problem,) = broken(pod("a", 2), given("a", units(GPU, 0), env), running(("a", env)))
    assert f"asks for 2 {MEM} and got 1" in problem


def test_a_process_without_what_the_agent_answered():
    env = environment(GPU, 2)
    (problem,) = broken(
        pod("a"), given("a", units(GPU, 0, 1), env), running(("a", env | {"ALIYUN_COM_GPU_MEM_DEV": "9"}))
    )
    assert "has '9'" in problem


def test_a_container_may_set_a_variable_for_itself():
    env = environment(GPU, 2)
    own = env | {"NVIDIA_VISIBLE_DEVICES": "void"}
    lines = pod("a", sets=["NVIDIA_VISIBLE_DEVICES"]), given("a", units(GPU, 0, 1), env), running(("a", own))
    assert not broken(*lines)


@pytest.mark.parametrize(
    ("decision", "listed", "is_broken"),
    [
        ('{"0":{"1":2}}', False, True),
        ('{"0":{"0":2}}', False, False),
        ('{"0":{"1":2}}', True, False),
        ('{"0":{"1":7}}', False, False),
        ("junk", False, False),
        ('{"0":{"1":2},"1":{"1":3}}', False, False),
        (f'{{"0":{{"{GPU}":2}}}}', False, False),
        (f'{{"0":{{"{OTHER}":2}}}}', False, True),
    ],
    ids=["another", "this", "seen late", "of another amount", "none", "of another pod", "by its UUID", "another UUID"],
)
def test_a_gpu_that_a_scheduler_decided(decision, listed, is_broken):
    env = environment(GPU, 2)
    lines = pod("a", decision=decision, listed=listed), given("a", units(GPU, 0, 1), env), running(("a", env))
    assert bool(broken(*lines)) == is_broken


@pytest.mark.parametrize(("cores", "is_broken"), [('{"0":{"1":30}}', True), ('{"0":{"2":30}}', False)])
def test_memory_and_compute_on_different_gpus_are_no_decision(cores, is_broken):
    env = environment(GPU, 2)
    decided = pod("a", decision='{"0":{"1":2}}')
    decided["annotations"]["gpushare.alibabacloud.com/core-percentage"] = cores
    assert bool(broken(decided, given("a", units(GPU, 0, 1), env), running(("a", env)))) == is_broken


def test_what_a_tenant_writes_after_the_binding_is_no_decision():
    env = environment(GPU, 2)
    lines = pod("a"), pod("a", decision='{"0":{"1":2}}'), given("a", units(GPU, 0, 1), env), running(("a", env))
    assert not broken(*lines)


def test_what_a_tenant_writes_between_binding_and_admission_may_be_what_the_agent_read():
    env = environment(GPU, 2)
    bound = pod("a", decision='{"0":{"1":2}}')
    edited = pod("a", decision='{"0":{"0":2}}')
    started = [given("a", units(GPU, 0, 1), env), running(("a", env))]
    admitted = pod("a", decision='{"0":{"0":2}}', phase="Running")
    node = reading(bound, edited, *started, admitted)
    assert not node.history.broken
    (doubt,) = node.history.doubts
    assert "was edited before kubelet admitted the pod" in doubt
    # What is written later, the agent did not read.
    is_running = pod("a", decision='{"0":{"1":2}}', phase="Running")
    assert broken(bound, is_running, *started, admitted)


def test_a_refusal_without_a_reason():
    refused = {"phase": "Failed", "reason": "UnexpectedAdmissionError"}
    (problem,) = broken(pod("a"), pod("a", **refused))
    assert "without a reason" in problem
    assert not broken(pod("a"), pod("a", **refused, message="Allocate failed due to ..."))
    assert not broken(pod("a"), pod("a", **refused, by_kubelet=False)), "somebody else wrote its status"


def test_what_cannot_be_known_is_left_out_and_counted():
    env = environment(GPU, 2)
    node = RecordedNode("node")
    node.read([given("b", ["foreign-1"], env), running(("a", env), ("b", env))])
    words = node.checked.words()
    assert not node.history.broken
    assert "checked 0 grants of 0 containers in 0 pods" in words
    assert "1 with another plugin's devices, 1 without devices of a plugin" in words


def test_a_container_that_the_pod_does_not_name_is_left_out():
    env = environment(GPU, 2)
    other = pod("a")
    other["containers"][0]["name"] = "another"
    node = reading(other, given("a", units(GPU, 0, 1), env), running(("a", env)))
    assert not node.history.broken
    assert "1 of a container that was not seen" in node.checked.words()


def test_a_recording_is_told_as_a_story(tmp_path, capsys):
    first, first_runs = shares("a", (0, 1))
    second, second_runs = shares("b", (1, 2))
    lines = [*first, *second, running(first_runs), running(second_runs)]
    path = tmp_path / "recorded-node.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + '\n{"at": 4, "ki')
    verdict = check(path)
    assert "checked 2 grants of 2 containers in 2 pods" in verdict.words
    assert "BROKEN" in verdict.story[-1]
    assert main([str(tmp_path)]) == 1
    assert "BROKEN" in capsys.readouterr().out


def test_a_doubt_is_told_and_is_a_success(tmp_path, capsys):
    lines = [*FORMER, running(FORMER_RUNS), deleted(listed=True), *NEXT, NEXT_ADMITTED, running(NEXT_RUNS)]
    (tmp_path / "recorded-node.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main([str(tmp_path)]) == 0
    assert "not certain, so no failure: default/former" in capsys.readouterr().out


def test_no_recording_is_no_success(tmp_path):
    assert main([str(tmp_path)]) == 2


def test_a_damaged_recording_is_named_and_the_others_are_checked(tmp_path, capsys):
    (tmp_path / "recorded-a.jsonl").write_text('{"at": 1.0, "kind": "run\n{"at": 1.0}\n', encoding="utf-8")
    whole = json.dumps({"at": 1.0, "kind": "running", "started": [], "ended": []})
    (tmp_path / "recorded-b.jsonl").write_text(f"{whole}\n{whole[:20]}", encoding="utf-8")
    assert main([str(tmp_path)]) == 2
    said = capsys.readouterr().out
    assert "recorded-a.jsonl is not a recording, or is damaged, so it is not checked" in said
    assert "recorded-b.jsonl: checked 0 grants of 0 containers in 0 pods" in said
    assert "at 1 moments" in said
