"""The host's edges: paths below the root, commands, who uses the GPUs, the command line itself."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuisolation import cli
from gpuisolation.errors import InstallerError
from gpuisolation.host import gpu_users
from gpuisolation.host.files import Files, PathState
from gpuisolation.host.gpu_users import User
from gpuisolation.host.root import Host, HostCommands
from tests.unit.installer.fakehost import CONTAINER, POD, DirectCommands

# -- paths -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "ends"),
    [
        ("/etc", "etc/x"),
        ("../etc", "etc/x"),
        ("../../../../../etc", "etc/x"),
        ("/../../etc/.", "etc/x"),
        (".", "var/x"),
    ],
)
def test_links_never_lead_out_of_the_root(tmp_path, target, ends):
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to(target)
    assert Host(tmp_path).at("/var/run/x") == tmp_path / ends


def test_the_last_link_is_followed_or_not(tmp_path):
    (tmp_path / "hook").symlink_to("/toolkit")
    assert Host(tmp_path).at("/hook") == tmp_path / "toolkit"
    assert Host(tmp_path).at("/hook", follow=False) == tmp_path / "hook"


def test_links_in_a_circle_are_an_error(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(InstallerError, match="form a circle"):
        Host(tmp_path).at("/a/x")


def test_a_root_without_proc_is_reported(tmp_path):
    with pytest.raises(InstallerError, match="mount the host with its /proc below the root"):
        Host(tmp_path).kernel()


# -- commands ------------------------------------------------------------------------------------------------------


def test_commands_run_through_chroot_but_for_our_own_root(tmp_path):
    assert HostCommands(Path("/")).argv(["depmod", "5.10"]) == ["depmod", "5.10"]
    assert HostCommands(tmp_path).argv(["depmod", "5.10"]) == ["chroot", str(tmp_path), "depmod", "5.10"]


def test_a_command_gets_its_input_and_environment_and_gives_both_streams():
    output = HostCommands(Path("/")).run(["sh", "-c", "read x; echo $x$E; echo err >&2; exit 3"], "in\n", {"E": "env"})
    assert (output.code, output.text) == (3, "inenv\nerr\n")


def test_a_command_that_is_not_there_is_127():
    assert HostCommands(Path("/")).run(["gpu-isolation-no-such-command"]).code == 127


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("busybox"), reason="chroot needs root, and a static busybox")
def test_a_command_really_runs_below_the_root(tmp_path):
    (tmp_path / "bin").mkdir()
    shutil.copy(shutil.which("busybox"), tmp_path / "bin/sh")
    if subprocess.run(["chroot", tmp_path, "sh", "-c", "exit 0"], capture_output=True, check=False).returncode:
        pytest.skip("busybox is not static, or chroot is forbidden")
    (tmp_path / "mark").write_text("below\n")
    assert Host(tmp_path).run("sh", "-c", "read x < /mark; echo $x").text == "below\n"


# -- files ---------------------------------------------------------------------------------------------------------


def test_a_folder_is_never_replaced(tmp_path):
    (tmp_path / "etc/cgpu.conf").mkdir(parents=True)
    files = Files(Host(tmp_path))
    with pytest.raises(InstallerError, match="neither a file nor a link: move it away"):
        files.place("/etc/cgpu.conf", PathState())


def test_a_staged_file_that_changed_is_not_put(tmp_path):
    (tmp_path / "staged").write_text("changed")
    files = Files(Host(tmp_path))
    with pytest.raises(InstallerError, match="changed since it was checked"):
        files.place("/target", PathState("file", sha256="0" * 64, source="/staged"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["staged"]


# -- users ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cgroup", "container", "pod"),
    [
        (
            f"0::/kubepods.slice/kubepods-besteffort-pod{POD.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope",
            CONTAINER,
            POD,
        ),
        (f"12:devices:/kubepods/burstable/pod{POD}/{CONTAINER}\n11:cpu:/\n", CONTAINER, POD),
        (f"4:memory:/docker/{CONTAINER}\n0::/x\n", CONTAINER, ""),
        (f"0::/system.slice/docker-{CONTAINER}.scope", CONTAINER, ""),
        (f"0::/../../kubepods/pod{POD}/{CONTAINER}/init", CONTAINER, POD),
        (f"0::/kubepods.slice/pod{POD}/crio-{CONTAINER}.scope", CONTAINER, POD),
        (f"1:name=systemd:/docker/{'a' * 64}/kubepods/pod{POD}/{CONTAINER}", CONTAINER, POD),
        ("0::/system.slice/nvidia-persistenced.service", "", ""),
        ("0::/user.slice", "", ""),
        ("", "", ""),
    ],
)
def test_container_and_pod_are_read_from_cgroups_v1_and_v2(cgroup, container, pod):
    assert gpu_users.identity(cgroup) == (container, pod)


def test_processes_are_found_by_open_and_by_mapped_nodes(host):
    host.container(900)
    host.process(901, command="only-mapped")
    (host.root / "proc/901/fd/3").unlink()
    host.process(902, command="only-ctl")
    host.write("proc/902/maps", "")
    (host.root / "proc/902/fd/3").unlink()
    (host.root / "proc/902/fd/3").symlink_to("/dev/nvidiactl")
    host.write("proc/903/comm", "no-fds\n")
    host.write("proc/904/fd", "not a folder")
    found = gpu_users.find(Host(host.root, DirectCommands(host.root)))
    assert found == (
        User(pid=900, command="python3", container=CONTAINER, pod=POD, nodes=("/dev/nvidia0",)),
        User(pid=901, command="only-mapped", nodes=("/dev/nvidia0",)),
    )
    assert str(found[1]) == "host process, pid 901 (only-mapped), /dev/nvidia0"


def test_a_container_whose_open_files_may_not_be_seen_counts_as_a_user(host, run, monkeypatch):
    host.container(900)
    host.write("proc/900/maps", "")
    host.process(901, command="of-the-host")
    host.write("proc/901/maps", "")

    listed = Path.iterdir

    def forbidden(folder):
        if folder.name == "fd":
            raise PermissionError(13, "Permission denied", str(folder))
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", forbidden)
    (found,) = gpu_users.find(Host(host.root, DirectCommands(host.root)))
    assert (found.pid, found.hidden, gpu_users.blocking([found], ())) == (900, True, (found,))
    assert "what it has open cannot be seen: run privileged" in run("preflight").out


def test_nothing_is_changed_where_the_hosts_processes_are_not_to_be_seen(installed, run):
    (installed.root / "proc/sys/kernel/osrelease").unlink()
    before = installed.tree()
    result = run("uninstall")
    assert result.code == 1
    assert "mount the host with its /proc below the root" in result.err
    assert installed.tree() == before


def test_an_instance_of_a_process_that_is_seen_is_named_once(installed):
    installed.container(900)
    installed.instance()
    installed.instance(gpu=1, name="aaaaaaaaaaaa")
    found = gpu_users.find(Host(installed.root, DirectCommands(installed.root)))
    assert [(user.pid, user.container[:12]) for user in found] == [(900, CONTAINER[:12]), (None, "aaaaaaaaaaaa")]


# -- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("install",), "--package is needed: nothing is installed on this node"),
        (("upgrade",), "--package is needed"),
        (("install", "--package", "/nowhere"), "--package /nowhere: no such folder or file"),
        (("install", "--package", "/nowhere", "--accept", "users"), "invalid choice: 'users'"),
        (("preflight", "--layer", "vgpu"), "invalid LayerKind value: 'vgpu'"),
        (("status", "-o", "xml"), "invalid choice: 'xml'"),
        (("uninstall", "--wait", "soon"), "'soon' is not a number of seconds"),
        (("uninstall", "--wait", "nan"), "'nan' is not a number of seconds"),
    ],
)
def test_mistakes_in_flags_are_2(run, arguments, expected):
    result = run(*arguments)
    assert result.code == 2
    assert expected in result.err


def test_upgrade_needs_a_layer(run, package_of):
    result = run("upgrade", "--package", package_of())
    assert result.code == 3
    assert "no layer to upgrade on this node: run install" in result.err


def test_a_root_that_is_not_there(tmp_path, capsys):
    assert cli.run(["status", "--root", str(tmp_path / "no")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_help_lists_the_exit_codes(capsys):
    for command in ([], ["preflight"], ["install"], ["upgrade"], ["uninstall"], ["policy"], ["status"]):
        with pytest.raises(SystemExit):
            cli.run([*command, "--help"])
        assert "0 success, 1 error, 2 usage error, 3 refused" in " ".join(capsys.readouterr().out.split())


def test_a_full_disk_is_reported_and_the_node_stays_whole(host, run, package_of, monkeypatch):
    before = host.tree()

    def full(self, source, to, mode):
        raise OSError(28, "No space left on device", str(to))

    monkeypatch.setattr(Files, "copy", full)
    result = run("install", "--package", package_of())
    assert result.code == 1
    assert "No space left on device" in result.err
    assert host.tree() == before


def test_it_runs_as_a_module_on_a_fake_root(host):
    argv = [sys.executable, "-m", "gpuisolation", "status", "--root", str(host.root)]
    root = Path(__file__).parents[3]
    path = os.pathsep.join([str(root), str(root / "installer")])
    done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("layer none")


def test_the_name_of_a_process_cannot_steer_a_terminal(host):
    host.container(900, command="\x1b]0;owned\x07\u202e")
    (found,) = gpu_users.find(Host(host.root, DirectCommands(host.root)))
    assert found.command.isprintable()
    assert "owned" in found.command
