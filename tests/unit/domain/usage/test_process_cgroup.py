"""A process's cgroups tell its container and pod, whatever kernel, cgroup driver, runtime and namespace it is seen from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.domain.usage.process_cgroup import ProcessContainer, parse_cgroup

ID, INNER, NODE = "0f" * 32, "1e" * 32, "2d" * 32
OTHER = "7f1c2e4a-0b1d-4c3e-9f00-1234567890ab"
HASH = "9a" * 16
UID = "6f1c2e4a-0b1d-4c3e-9f00-1234567890ab"
SLICE = UID.replace("-", "_")


@pytest.mark.parametrize(
    "text",
    [
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/cri-containerd-{ID}.scope",
        f"0::/kubepods.slice/kubepods-pod{SLICE}.slice/crio-{ID}.scope",
        f"0::/kubepods.slice/kubepods-pod{SLICE}.slice/crio-{ID}.scope/container",
        f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICE}.slice/docker-{ID}.scope",
        f"0::/kubepods/burstable/pod{UID}/{ID}",
        f"0::/kubepods/besteffort/pod{UID}/crio-{ID}",
        f"0::/../../kubepods-burstable-pod{SLICE}.slice/cri-containerd-{ID}.scope",
        f"0::/../../pod{UID}/{ID}/init.scope",
        f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope/app",
        f"11:devices:/kubepods/burstable/pod{UID}/{ID}\n5:memory:/kubepods/burstable/pod{UID}/{ID}\n0::/",
        f"12:cpu,cpuacct:/\n4:memory:/other\n1:name=systemd:/kubepods/pod{UID}/{ID}\n0::/system.slice/containerd.service",
        f"1:name=systemd:/system.slice/containerd.service/kubepods-burstable-pod{SLICE}.slice:cri-containerd:{ID}",
    ],
)
def test_one_container_of_one_pod(text: str) -> None:
    assert parse_cgroup(text) == ProcessContainer(ID, UID)


@pytest.mark.parametrize("around", ["", f"/docker/{NODE}", "/../.."])
@pytest.mark.parametrize(
    "within",
    [f"/docker/{INNER}", f"/pod{OTHER}/{INNER}", f"/kubepods-pod{OTHER}.slice/crio-{INNER}.scope", f"/pod{OTHER}"],
)
def test_what_a_container_makes_within_itself_says_nothing(around: str, within: str) -> None:
    """It may name its cgroups as it likes, after a neighbour too. A node that is a container is around all pods."""
    assert parse_cgroup(f"0::{around}/kubepods/pod{UID}/{ID}{within}\n") == ProcessContainer(ID, UID)


@pytest.mark.parametrize("others", [f"/x/{INNER}", f"/kubepods/pod{UID}/{ID}/{INNER}", f"/kubepods/pod{UID}", "/"])
def test_each_hierarchy_speaks_for_itself_and_one_that_names_a_pod_counts(others: str) -> None:
    text = f"12:devices:{others}\n11:memory:/kubepods/pod{UID}/{ID}\n10:cpu:{others}\n"
    assert parse_cgroup(text) == ProcessContainer(ID, UID)


def test_hierarchies_that_contradict_each_other_say_nothing() -> None:
    one = f"12:devices:/kubepods/pod{UID}/{ID}\n"
    assert parse_cgroup(f"{one}11:memory:/kubepods/pod{OTHER}/{INNER}\n") == ProcessContainer()
    assert parse_cgroup(f"{one}11:memory:/kubepods/pod{UID}/{INNER}\n") == ProcessContainer(None, UID)
    assert parse_cgroup(f"2:cpu:/a/{ID}\n1:memory:/a/{INNER}\n") == ProcessContainer()


@pytest.mark.parametrize("pod", [f"pod{HASH}", f"kubepods-burstable-pod{HASH}.slice"])
def test_a_pod_of_a_file_has_a_hash_for_its_uid(pod: str) -> None:
    assert parse_cgroup(f"0::/kubepods/{pod}/{ID}/{INNER}\n") == ProcessContainer(ID, HASH)


def test_a_container_without_kubelets_hierarchy() -> None:
    assert parse_cgroup(f"0::/k8s.io/{ID}/{INNER}\n") == ProcessContainer(ID)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0::/\n",
        "0::/user.slice/user-1000.slice/session-3.scope",
        "0::/system.slice/docker.service",
        f"0::/kubepods/crio-conmon-{ID}.scope",
        f"0::/a/{ID[:-1]}",
        f"0::/a/{ID}0",
        f"0::/a/x{ID}",
        "no colon at all",
        f"0:{ID}",
    ],
)
def test_no_container(text: str) -> None:
    assert parse_cgroup(text) == ProcessContainer()


@given(st.text())
def test_no_text_is_too_odd(text: str) -> None:
    parse_cgroup(text)
