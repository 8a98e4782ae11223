"""Ways in which a tenant may try to exceed the share of its pod. None succeeds, but for those that the driver permits.

Real containers run on the real kubelet. The driver is simulated, and charges memory to the control groups of the real
processes. What they got is read from the driver, not from them.
"""

from collections.abc import Iterator

import pytest

from tests.e2e.agent.conftest import Node
from tests.e2e.agent.limits.attacks import (
    GPU,
    OTHER_GPU,
    PROCESSES,
    attack,
    attacking_pod,
    container_restarts,
    enter,
    share,
    wait_ready,
    wait_said,
    wait_unused,
    without_device,
)
from tests.e2e.agent.limits.helper import Helper
from tests.paused_process import pause_process, resume_process

WHOLE_GPU = "81920"
FORGED = {
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_GPU_MEMORY_LIMIT": WHOLE_GPU,
    "NVIDIA_GPU_MEMORY_REQUEST": WHOLE_GPU,
    "ALIYUN_COM_GPU_MEM_CONTAINER": "80",
    "ALIYUN_COM_GPU_MEM_POD": "80",
    "CGPU_DISABLE": "true",
}
"""What agents, cGPU, and NVIDIA's toolkit read, as if the pod had the whole GPU."""


PERMITTED, NOT_PERMITTED = "device: No such device or address", "device: Operation not permitted"
"""What the kernel says to who opens the device node of a GPU, on a machine without a driver."""


@pytest.fixture
def node(limited_node: Node, helper: Helper) -> Iterator[Node]:
    yield limited_node
    for name in limited_node.pods:
        # Nobody waits for the end of the pod: the names differ, and the GPU has room for all of them.
        limited_node.cluster.delete_pod(name, timeout=0)
    wait_unused(helper)


def assert_has_its_share(helper: Helper) -> None:
    """All of it, or the attack was not tried, and nothing more."""
    assert helper.used(GPU) == share()


@pytest.mark.parametrize("way", ["plain", "fork", "ipc"])
def test_a_static_program_gets_no_more(node: Node, helper: Helper, way: str) -> None:
    """Also by children that it forks, and by memory that another process imports."""
    node.run(attacking_pod(way, helper, attack(way)))
    wait_ready(node, way)
    assert_has_its_share(helper)


def test_a_program_that_replaces_itself_gets_no_more(node: Node, helper: Helper) -> None:
    """The new one has no environment at all."""
    node.run(attacking_pod("replaced", helper, attack("exec")))
    wait_ready(node, "replaced")
    assert_has_its_share(helper)


def test_several_processes_get_no_more_than_one(node: Node, helper: Helper) -> None:
    node.run(attacking_pod("several", helper, attack("processes")))
    wait_ready(node, "several", times=PROCESSES)
    assert_has_its_share(helper)


def test_a_forged_environment_gets_no_more(node: Node, helper: Helper) -> None:
    node.run(attacking_pod("forged", helper, attack("plain"), env=FORGED))
    wait_ready(node, "forged")
    assert_has_its_share(helper)


def test_a_raised_cap_of_mps_gets_no_more(node: Node, helper: Helper) -> None:
    raised = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=80G", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100"}
    node.run(attacking_pod("raised", helper, attack("plain"), env=raised))
    wait_ready(node, "raised")
    assert_has_its_share(helper)


def test_a_cleared_pipe_directory_of_mps_gets_no_more(node: Node, helper: Helper) -> None:
    node.run(attacking_pod("cleared", helper, attack("plain"), env={"CUDA_MPS_PIPE_DIRECTORY": ""}))
    wait_ready(node, "cleared")
    assert_has_its_share(helper)


def test_a_program_of_kubectl_exec_gets_no_more(node: Node, helper: Helper) -> None:
    node.run(attacking_pod("entered", helper, attack("nothing")))
    wait_ready(node, "entered")
    assert helper.used(GPU) == 0
    enter(node, "entered", attack("plain"))
    assert_has_its_share(helper)
    enter(node, "entered", attack("fork"))
    assert_has_its_share(helper)


@pytest.mark.parametrize("privileged", [False, True])
def test_a_control_group_of_its_own_gets_no_more(node: Node, helper: Helper, *, privileged: bool) -> None:
    manifest = attacking_pod("nested", helper, attack("nested-cgroup"))
    manifest["spec"]["containers"][0]["securityContext"] = {"privileged": privileged}
    node.run(manifest)
    said = wait_ready(node, "nested")
    assert ("in a control group of its own" in said) is privileged, said
    assert_has_its_share(helper)


def test_a_container_without_a_device_beside_one_with_a_share_gets_no_more(node: Node, helper: Helper) -> None:
    """The kernel keeps it from the GPU. If it reaches the driver all the same, it gets nothing beyond its pod's share."""
    kept_out = without_device("kept-out", attack("device-node", GPU, "0"))
    let_in = without_device("let-in", attack("plain"))
    node.run(attacking_pod("beside", helper, attack("plain"), others=[kept_out, let_in]))
    for container in ("main", "kept-out", "let-in"):
        wait_ready(node, "beside", container)
    assert_has_its_share(helper)
    assert "nvidia0" in node.cluster.container_devices("beside")
    assert "nvidia0" not in node.cluster.container_devices("beside", "let-in")
    assert NOT_PERMITTED in node.cluster.pod_log("beside", "kept-out")


def test_another_gpu_cannot_be_reached(node: Node, helper: Helper) -> None:
    """The kernel permits the device nodes that the container was given, whatever its environment says."""
    for index, gpu in ((0, GPU), (1, OTHER_GPU)):
        name = f"gpu-{index}"
        command = attack("device-node", gpu, str(index))
        node.run(attacking_pod(name, helper, command, env={"NVIDIA_VISIBLE_DEVICES": OTHER_GPU}))
        said = wait_ready(node, name)
        assert (PERMITTED if gpu == GPU else NOT_PERMITTED) in said
    assert_has_its_share(helper)
    assert helper.used(OTHER_GPU) == 0


def test_a_container_that_restarts_while_the_agent_is_away_gets_no_more(node: Node, helper: Helper) -> None:
    """A kubelet that was restarted meanwhile does not know that it should ask before it starts the container."""
    node.run(attacking_pod("restarts", helper, attack("plain"), restart_policy="Always"))
    wait_ready(node, "restarts")
    former = node.cluster.container("restarts")
    node.cluster.stop_kubelet()
    node.agent.kill()
    node.cluster.start_kubelet()
    former.kill()
    node.cluster.wait_pod("restarts", lambda pod: container_restarts(pod) == 1)
    wait_ready(node, "restarts")
    assert_has_its_share(helper)
    node.agent.start()
    node.agent.wait_ready()
    node.wait_amounts(mem=640)
    assert_has_its_share(helper)


def test_a_pod_that_was_deleted_by_force_gets_no_more(node: Node, helper: Helper) -> None:
    """Kubelet has given its units to the next pod, and no longer names it to the agent, but its limit is still there."""
    begin = helper.attack / "begin"
    said = helper.attack / "said"  # the stopped runtime takes nothing from it
    command = " ".join(attack("plain"))
    waits = f"until [ -e /attack/{begin.name} ]; do sleep 0.1; done; exec {command} > /attack/{said.name} 2>&1"
    node.run(attacking_pod("former", helper, ["/bin/sh", "-c", waits]))
    former = node.cluster.container("former")
    runtime = former.parent()
    # It does not end the container, as if the kernel could not kill a process.
    pause_process(runtime)
    try:
        node.cluster.delete_pod("former", grace=0, timeout=0)
        node.pods.remove("former")
        node.run(attacking_pod("next", helper, attack("plain")))
        wait_ready(node, "next")
        begin.touch()
        wait_said(said)
        assert former.alive
        assert helper.used(GPU) == 2 * share()
    finally:
        resume_process(runtime)
        begin.unlink(missing_ok=True)
        said.unlink(missing_ok=True)
    node.cluster.wait_pod_gone("former")


# -- What the driver counts for nobody; the agent says so ----------------------------------------------------------


def test_managed_memory_is_not_limited_and_users_are_told(node: Node, helper: Helper) -> None:
    node.run(attacking_pod("managed", helper, attack("managed")))
    wait_ready(node, "managed")
    assert helper.used(GPU) > share(79)
    assert "cudaMallocManaged" in str(node.agent.status())


def test_who_opened_the_driver_has_ended(node: Node, helper: Helper) -> None:
    """Backend misc counts for the process that opened the driver; for one that has ended, it counts nothing."""
    node.run(attacking_pod("orphan", helper, attack("orphan")))
    wait_ready(node, "orphan")
    if helper.backend == "misc":
        assert helper.used(GPU) > share(79)
    else:
        assert_has_its_share(helper)


# -- Without isolation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("helper", ["dmem"], indirect=True)
def test_without_isolation_the_same_program_gets_all_of_the_gpu(node: Node, helper: Helper) -> None:
    node.switch("share", mem=640)
    node.run(attacking_pod("alone", helper, attack("plain")))
    wait_ready(node, "alone")
    assert helper.used(GPU) > share(79)
    # GPUs that a pod of one mode holds are not offered in another.
    node.end("alone")
    node.switch("cgpu", mem=640)
