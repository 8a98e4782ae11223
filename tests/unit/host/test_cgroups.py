"""Where the cgroups of pods and containers are, on directories as each kubelet and runtime makes them."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.host.cgroups import (
    CgroupError,
    NoCgroupError,
    PodsRoot,
    PodsRootError,
    container_id,
    find_pods_root,
    identify,
    leaves,
    named_pods_root,
)
from tests.cgroup_trees import CONTAINER, LAYOUTS, OTHER_POD, POD, QOS, SANDBOX, STATIC_POD, CgroupTree
from tests.descriptors import descriptors_below


@pytest.fixture(params=LAYOUTS)
def tree(request, tmp_path) -> CgroupTree:
    return CgroupTree(tmp_path, **LAYOUTS[request.param])


def test_the_pods_root_is_found(tree):
    (tree.root / "system.slice" / "containerd.service").mkdir(parents=True)
    root = find_pods_root(tree.root)
    assert root == PodsRoot(tree.pods_root)
    assert root.is_systemd is tree.systemd


@pytest.mark.parametrize("uid", [POD, STATIC_POD])
@pytest.mark.parametrize("qos", QOS)
def test_a_pod_of_each_class(tree, qos, uid):
    path = tree.add_pod(uid, qos)
    root = find_pods_root(tree.root)
    assert root.pod_directory(uid) == path
    assert root.pod_directory(OTHER_POD) is None
    assert root.pods() == {uid: path}


def test_containers_of_a_pod(tree):
    pod = tree.add_pod(POD)
    names = tree.add_container(pod, CONTAINER) + tree.add_container(pod, SANDBOX)
    (pod / "cgroup.procs").touch()
    (pod / "init.scope").mkdir()
    assert sorted(leaves(pod)) == sorted(names), "neither monitors nor what is no container"
    assert {container_id(name) for name in names} == {CONTAINER, SANDBOX}
    shutil.rmtree(pod)
    assert leaves(pod) == ()


def test_a_child_that_a_container_made_does_not_hide_the_containers_own(tmp_path):
    tree = CgroupTree(tmp_path)
    pod = tree.add_pod(POD)
    tree.add_container(pod)
    (pod / CONTAINER / "container").mkdir()
    (pod / CONTAINER / "other").mkdir()
    assert leaves(pod) == (CONTAINER, f"{CONTAINER}/container")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "container",
        CONTAINER[:-1],
        CONTAINER.upper(),
        f"crio-conmon-{CONTAINER}.scope",
        f"crio-conmon-{CONTAINER}",
        f"{CONTAINER}.slice",
        f"{CONTAINER}\n",
        f"../{CONTAINER}",
        f"{CONTAINER}/",
        f"{CONTAINER}/..",
        f"{CONTAINER}/other",
        f"{CONTAINER}/container/container",
        f"/{CONTAINER}",
        f".-{CONTAINER}",
    ],
)
def test_what_is_no_container(name):
    assert container_id(name) is None


@pytest.mark.parametrize(
    "name", [f"docker-{CONTAINER}.scope", f"crio-{CONTAINER}.scope/container", f"cri-containerd-{CONTAINER}.scope"]
)
def test_a_containers_id(name):
    assert container_id(name) == CONTAINER


@pytest.mark.parametrize("layout", ["cgroupfs", "systemd"])
def test_other_spellings_of_a_pod_are_no_pods(tmp_path, layout):
    tree = CgroupTree(tmp_path, **LAYOUTS[layout])
    right = tree.add_pod(POD)
    folder = right.parent
    for name in (
        f"pod{OTHER_POD}.slice",
        f"kubepods-pod{OTHER_POD}.slice",
        f"xpod{OTHER_POD}",
        f"pod{OTHER_POD.upper()}",
    ):
        (folder / name).mkdir()
    (folder / f"pod{POD.replace('-', '_')}").mkdir()
    (folder / right.name.replace(POD, OTHER_POD).replace(POD.replace("-", "_"), OTHER_POD)).symlink_to(right)
    assert find_pods_root(tree.root).pods() == {POD: right}


def test_a_kubelet_in_a_pod_is_not_looked_at(tmp_path):
    tree = CgroupTree(tmp_path)
    pod = tree.add_pod(POD)
    CgroupTree(pod / CONTAINER)
    assert find_pods_root(tmp_path).path == tree.pods_root


def test_of_several_the_one_with_the_own_pod(tmp_path):
    former = CgroupTree(tmp_path)
    tree = CgroupTree(tmp_path, systemd=True)
    in_docker = CgroupTree(tmp_path / "docker" / SANDBOX, above="kubelet")
    tree.add_pod(POD)
    in_docker.add_pod(OTHER_POD)
    assert find_pods_root(tmp_path, POD).path == tree.pods_root
    assert find_pods_root(tmp_path, OTHER_POD).path == in_docker.pods_root
    for own_pod in ("", STATIC_POD, "../etc"):
        with pytest.raises(PodsRootError, match=r"3 cgroups may be .*--pods-cgroup") as caught:
            find_pods_root(tmp_path, own_pod)
        assert str(former.pods_root) in str(caught.value)


def test_too_deep(tmp_path):
    deepest = CgroupTree(tmp_path / "a" / "b" / "c" / "d")
    CgroupTree(tmp_path / "1" / "2" / "3" / "4" / "5")
    assert find_pods_root(tmp_path).path == deepest.pods_root


def test_no_pods_root(tmp_path):
    (tmp_path / "k8s.io").mkdir()
    (tmp_path / "kubepods").touch()
    (tmp_path / "link.slice").symlink_to(tmp_path)
    for root in (tmp_path, tmp_path / "missing"):
        with pytest.raises(PodsRootError, match="cgroupsPerQOS"):
            find_pods_root(root)


def test_a_named_pods_root(tmp_path):
    tree = CgroupTree(tmp_path, above="kubelet")
    for name in ("kubelet/kubepods", "/kubelet/kubepods", "/kubelet/kubepods/"):
        assert named_pods_root(tmp_path, name).path == tree.pods_root
    (tmp_path / "link").symlink_to(tree.pods_root)
    for name in ("kubelet/kubepod", "..", "kubelet/../kubelet/kubepods", "link", "a\0b", "x" * 5000):
        with pytest.raises(PodsRootError, match="--pods-cgroup"):
            named_pods_root(tmp_path, name)


def test_an_identity_tells_directories_of_one_name_apart(tmp_path):
    pod = CgroupTree(tmp_path).add_pod(POD)
    before = identify(tmp_path, pod)
    assert identify(tmp_path, pod) == before
    other = tmp_path / "other"
    other.mkdir()
    pod.rmdir()
    other.rename(pod)
    assert identify(tmp_path, pod) != before
    pod.rmdir()
    with pytest.raises(NoCgroupError, match="its pod or container has ended"):
        identify(tmp_path, pod)


def test_no_link_on_the_way(tmp_path):
    root = tmp_path / "root"
    pod = CgroupTree(root).add_pod(POD)
    outside = tmp_path / "outside"
    shutil.copytree(pod.parent, outside)
    shutil.rmtree(pod.parent)
    pod.parent.symlink_to(outside)
    assert pod.is_dir()
    with pytest.raises(CgroupError, match="is a link"):
        identify(root, pod)


def test_no_other_filesystem(tmp_path):
    # /proc is a filesystem of its own on every machine.
    with pytest.raises(CgroupError, match="on another filesystem"):
        identify(Path("/"), Path("/proc/self"))


PARTS = st.sampled_from(["..", ".", "", "kubepods", "burstable", "link", f"pod{POD}", "x\0", "x" * 300, "é\udcff", "/"])


@given(st.lists(PARTS, max_size=6))
def test_no_path_leads_outside(tmp_path_factory, parts):
    folder = tmp_path_factory.getbasetemp() / "identify"
    root = folder / "root"
    if not root.exists():
        CgroupTree(root).add_pod(POD)
        (folder / "kubepods").mkdir()
        (root / "kubepods" / "link").symlink_to(folder)
    path = f"{root}/{'/'.join(parts)}"
    try:
        identity = identify(root, Path(path))
    except CgroupError as err:
        assert str(err).isprintable()
    else:
        inside = {
            (entry.stat().st_dev, entry.stat().st_ino) for entry in [root, *root.rglob("*")] if not entry.is_symlink()
        }
        assert (identity.device, identity.inode) in inside


def test_descriptors_are_closed(tmp_path):
    pod = CgroupTree(tmp_path).add_pod(POD)
    for path in (pod, pod / "missing", tmp_path / ".."):
        for _ in range(3):
            try:
                identify(tmp_path, path)
            except CgroupError:
                pass
    assert descriptors_below(tmp_path) == []
