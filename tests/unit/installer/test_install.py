"""Installing, upgrading, removing: what changes on the node, what is refused, what stays."""

import fcntl
import shutil
import time

import pytest

from gpuisolation.change.change_lock import ChangeLock
from tests.unit.installer.fakehost import CONTAINER, HOOK, KERNEL, POD, TOOLKIT, sums

MODULES = f"lib/modules/{KERNEL}/kernel/virt/lib"


# -- install -----------------------------------------------------------------------------------------------------


def test_install_puts_the_layer_in_place_and_nothing_else(host, run, package_of):
    before = host.tree()
    result = run("install", "--package", package_of("1.5.10"))
    assert (result.code, result.out) == (0, "install of cGPU 1.5.10: done\n")
    assert host.works("1.5.10")
    changed = {name for name, what in host.tree().items() if before.get(name) != what}
    changed = {name for name in changed if not name.startswith("proc/")}
    assert changed == {HOOK, "etc/cgpu.conf", f"{MODULES}/cgpu_km_1_5_10.ko", f"{MODULES}/cgpu_procfs.ko"}
    assert host.state() == ["installed.json"]


def test_the_steps_are_in_the_order_in_which_no_container_starts_unisolated(run, package_of):
    log = run("install", "--package", package_of("1.5.10")).err
    does = [line.split('does="')[1].rstrip('"') for line in log.splitlines() if " Started step " in line]
    assert [step.split(" ")[0] for step in does if not step.startswith("on the way back")] == [
        *["put"] * 3,
        "depmod",
        "nvidia-smi",
        *["modprobe"] * 2,
        "check",
        "set",
        *["put"] * 2,
    ]
    assert does[-2] == f"put /{HOOK}"


def test_the_policy_is_set_on_every_gpu_and_native_unless_another_is_asked_for(host, run, package_of):
    assert run("install", "--package", package_of("1.5.10")).code == 0
    assert [(host.root / f"proc/cgpu_km/{gpu}/policy").read_text() for gpu in (0, 1)] == ["5", "5"]
    assert run("uninstall").code == 0
    assert run("install", "--package", package_of("1.5.10"), "--policy", "fair-share").code == 0
    assert [(host.root / f"proc/cgpu_km/{gpu}/policy").read_text().strip() for gpu in (0, 1)] == ["0", "0"]


def test_a_node_that_has_it_is_left_as_it_is(installed, run, package_of):
    before = installed.tree(), installed.state()
    installed.container(900)  # also while containers run
    result = run("install", "--package", package_of("1.5.10"))
    assert (result.code, result.out) == (0, "cGPU 1.5.10 is installed from this package: nothing to do\n")
    installed.end(900)
    assert (installed.tree(), installed.state()) == before


def test_a_newer_package_is_not_installed_over_what_is_there(installed, run, package_of):
    before = installed.tree()
    result = run("install", "--package", package_of("1.5.12"))
    assert result.code == 0
    assert "the node has cGPU 1.5.10, the package is 1.5.12: left as it is; run upgrade" in result.out
    assert installed.tree() == before


def test_after_a_reboot_what_is_installed_is_loaded_again_with_its_policy(installed, run, package_of):
    assert run("policy", "--set", "2", "--gpu", "1").code == 0
    installed.reboot()
    result = run("install")
    assert (result.code, result.out) == (0, "loading of cGPU 1.5.10: done\n")
    assert installed.works("1.5.10")
    assert [(installed.root / f"proc/cgpu_km/{gpu}/policy").read_text() for gpu in (0, 1)] == ["5", "2"]
    installed.reboot()
    result = run("install", "--package", package_of("1.5.12"))  # a component upgrade does not upgrade the node
    assert result.code == 0
    assert installed.works("1.5.10")


def test_another_kernel_needs_modules_of_its_own(installed, run, package_of):
    installed.reboot()
    installed.write("proc/sys/kernel/osrelease", "6.6.0-new\n")
    result = run("install")
    assert result.code == 2
    assert f"the modules are for kernel {KERNEL}, 6.6.0-new runs" in result.err
    result = run("install", "--package", package_of("1.5.10"))
    assert result.code == 1
    assert f"no modules for kernel 6.6.0-new and no Makefile to build them; it has them for: {KERNEL}" in result.err


def test_a_package_of_sources_is_built_on_the_host(host, run, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "cgpu-container-wrapper").write_text("wrapper of cgpu\n")
    (source / "Makefile").write_text("all:\n")
    (source / "version").write_text("1.5.10\n")
    sums(source)
    host.write("usr/bin/make", f'printf "vermagic={KERNEL} \\nversion=1.5.10\\n" > $R$2/cgpu_km.ko')
    result = run("install", "--package", source)
    assert result.code == 0, result.err
    assert host.version() == "1.5.10"
    assert (host.root / MODULES / "cgpu_km.ko").exists()


def test_a_failed_build_says_what_the_host_needs(host, run, tmp_path, package_of):
    folder = package_of("1.5.10")
    (folder / "Makefile").write_text("all:\n")
    sums(folder)
    before = host.tree()
    host.write("proc/sys/kernel/osrelease", "6.6.0-new\n")
    host.write("usr/bin/make", "echo 'gcc: not found'; exit 2")
    result = run("install", "--package", folder)
    assert result.code == 1
    assert "building the modules for 6.6.0-new ended with 2" in result.err
    assert "gcc: not found" in result.err
    host.write("proc/sys/kernel/osrelease", f"{KERNEL}\n")
    host.write("usr/bin/make", before["usr/bin/make"].partition(" ")[2])
    assert host.tree().keys() == before.keys()


def test_what_somebody_else_installed_is_left_alone_but_an_upgrade_takes_it_over(host, run, package_of):
    host.write("proc/cgpu_km/version", "1.5.9\n")
    host.write("proc/cgpu_km/0/policy", "1\n")
    host.write("proc/cgpu_km/0/max_inst", "20\n")
    host.write("proc/modules", "cgpu_km_1_5_9 1 0 - Live 0x0\nnvidia 1 0 - Live 0x0\n")
    host.write(f"{MODULES}/cgpu_km_1_5_9.ko", "version=1.5.9\n")
    (host.root / HOOK).unlink()
    host.write(HOOK, "ELF ALIYUN_COM_GPU_MEM_DEV")
    before = host.tree()
    result = run("install", "--package", package_of("1.5.10"))
    assert result.code == 0
    assert "the node has cGPU 1.5.9 that this program did not install: left as it is" in result.out
    assert host.tree() == before
    result = run("upgrade", "--package", package_of("1.5.10"))
    assert result.code == 0, result.err
    assert host.works("1.5.10")
    assert not (host.root / MODULES / "cgpu_km_1_5_9.ko").exists()
    assert (host.root / "proc/cgpu_km/0/policy").read_text().strip() == "1"
    assert run("uninstall").code == 0
    assert str((host.root / HOOK).readlink()) == "/usr/bin/nvidia-container-toolkit"


def test_files_of_others_that_are_not_loaded_are_not_taken_for_a_layer(host, run, package_of):
    host.write(f"{MODULES}/cgpu_km.ko", "version=1.5.9\n")
    result = run("install", "--package", package_of("1.5.10"))
    assert result.code == 3
    assert "it is not loaded. Load it (modprobe cgpu_km), or run upgrade" in result.err


# -- failures ----------------------------------------------------------------------------------------------------


def test_modules_that_do_not_load_leave_the_node_as_it_was(host, run, package_of):
    before = host.tree()
    result = run("install", "--package", package_of("1.5.10", broken=True))
    assert result.code == 1
    assert "Invalid argument. The node is as it was before" in result.err
    assert {**host.tree()} == before
    assert host.state() == []


def test_after_a_failed_upgrade_the_old_layer_works_with_its_policies(installed, run, package_of):
    assert run("policy", "--set", "3", "--gpu", "0", "--max-inst", "12").code == 0
    before = installed.tree(), installed.state()
    result = run("upgrade", "--package", package_of("1.5.12", broken=True))
    assert result.code == 1
    assert installed.works("1.5.10")
    assert (installed.tree(), installed.state()) == before


def test_a_module_that_cannot_be_unloaded_ends_the_upgrade_before_it_began(installed, run, package_of):
    installed.write("busy", "")
    before = installed.tree()
    result = run("upgrade", "--package", package_of("1.5.12"))
    assert result.code == 1
    assert "is in use. The node is as it was before" in result.err
    assert installed.tree() == before


def test_a_container_that_comes_after_the_question_ends_the_upgrade_before_it_began(
    installed, run, package_of, monkeypatch
):
    monkeypatch.setattr(ChangeLock, "idle", lambda self, why: installed.instance())
    result = run("upgrade", "--package", package_of("1.5.12"))
    assert result.code == 1
    assert f"container {CONTAINER[:12]} began to use a GPU meanwhile: cordon the node first" in result.err
    assert installed.works("1.5.10")


def test_a_way_back_that_fails_says_so_and_is_gone_again_by_the_next_run(installed, run, package_of):
    modprobe = installed.root / "usr/sbin/modprobe"
    good = modprobe.read_text()
    before = installed.tree()
    modprobe.write_text("echo 'modprobe: kernel is unwell'; exit 1")
    result = run("upgrade", "--package", package_of("1.5.12"))
    assert result.code == 1
    assert "to take it back failed too" in result.err
    assert "Cordon the node, reboot it, and run the same command again" in result.err
    modprobe.write_text(good)
    installed.reboot()
    result = run("install")
    assert result.code == 0, result.err
    assert installed.works("1.5.10")
    assert installed.tree() == before


def test_a_module_of_another_version_than_the_package_says_is_not_accepted(host, run, package_of):
    folder = package_of("1.5.10")
    (folder / "version").write_text("1.5.11\n")
    sums(folder)
    result = run("install", "--package", folder)
    assert result.code == 1
    assert "says '1.5.10', wanted '1.5.11'" in result.err
    assert host.version() == ""


# -- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["upgrade", "uninstall"])
def test_refused_while_a_container_uses_a_gpu_and_says_who(installed, run, package_of, command):
    installed.container(900)
    before = installed.tree(), installed.state()
    package = ["--package", package_of("1.5.12")] if command == "upgrade" else []
    result = run(command, *package)
    assert result.code == 3
    assert f"container {CONTAINER[:12]}, pod {POD}, pid 900 (python3), /dev/nvidia0" in result.err
    assert (installed.tree(), installed.state()) == before


@pytest.mark.parametrize("command", ["upgrade", "uninstall"])
def test_refused_while_an_instance_is_there_whose_processes_are_not_seen(installed, run, package_of, command):
    installed.instance()
    package = ["--package", package_of("1.5.12")] if command == "upgrade" else []
    result = run(command, *package)
    assert result.code == 3
    assert f"container {CONTAINER[:12]}, cGPU instance on GPU 0" in result.err


def test_a_monitor_may_stay_where_it_is_named(installed, run):
    installed.container(900, command="dcgm-exporter")
    assert run("uninstall").code == 3
    assert run("uninstall", "--ignore", "dcgm-exporter").code == 0


def test_a_process_of_the_host_hinders_nobody(installed, run):
    installed.process(901, command="nvidia-persiste")
    assert run("uninstall").code == 0


def test_waiting_ends_when_the_container_does(installed, run, monkeypatch):
    installed.container(900)
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        installed.end(900)

    monkeypatch.setattr(time, "sleep", sleep)
    assert run("uninstall", "--wait").code == 0
    assert len(slept) == 1


def test_known_bad_versions_are_refused_by_number(host, run, package_of):
    before = host.tree()
    result = run("install", "--package", package_of("1.5.7"))
    assert result.code == 3
    assert "cGPU 1.5.7 is known to be bad: it can lock up or panic the kernel" in result.err
    assert host.tree() == before
    assert run("install", "--package", package_of("1.5.7"), "--accept", "cgpu-version").code == 2


def test_an_upgrade_to_a_known_bad_version_is_refused(installed, run, package_of):
    assert run("upgrade", "--package", package_of("1.5.2")).code == 3
    assert installed.works("1.5.10")


def test_a_check_refuses_the_install_unless_the_operator_takes_it_upon_himself(host, run, package_of):
    host.write("sys/class/dmi/id/sys_vendor", "QEMU\n")
    host.write("sys/class/dmi/id/product_name", "Standard PC\n")
    result = run("install", "--package", package_of("1.5.10"))
    assert result.code == 3
    assert "ecs: QEMU / Standard PC; wanted Alibaba Cloud ECS" in result.err
    assert run("install", "--package", package_of("1.5.10"), "--accept", "ecs").code == 0


def test_two_runs_at_once_do_not_meet(installed, run):
    with (installed.root / "var/lib/gpu-isolation/lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = run("uninstall")
        assert result.code == 3
        assert "another run is at work on this node" in result.err
    assert run("uninstall").code == 0


# -- upgrade and uninstall ---------------------------------------------------------------------------------------


def test_upgrade_exchanges_the_layer(installed, run, package_of):
    assert run("policy", "--set", "1").code == 0
    result = run("upgrade", "--package", package_of("1.5.12"))
    assert (result.code, result.out) == (0, "upgrade of cGPU 1.5.12: done\n")
    assert installed.works("1.5.12")
    assert not (installed.root / MODULES / "cgpu_km_1_5_10.ko").exists()
    assert (installed.root / "proc/cgpu_km/1/policy").read_text().strip() == "1"
    result = run("upgrade", "--package", package_of("1.5.12"))
    assert result.out == "cGPU 1.5.12 is installed from this package: nothing to do\n"


def test_uninstall_brings_back_what_was_there(host, run, package_of):
    before = host.tree()
    assert run("install", "--package", package_of("1.5.10")).code == 0
    assert run("upgrade", "--package", package_of("1.5.12")).code == 0
    result = run("uninstall")
    assert (result.code, result.out) == (0, "removal of cGPU 1.5.12: done\n")
    assert host.tree() == before
    assert host.state() == []
    assert run("uninstall").out == "no layer on this node: nothing to do\n"


def test_uninstall_brings_back_a_hook_that_was_a_file(host, run, package_of):
    (host.root / HOOK).unlink()
    host.write(HOOK, "the toolkit's own hook").chmod(0o755)
    before = host.tree()
    assert run("install", "--package", package_of("1.5.10")).code == 0
    assert run("upgrade", "--package", package_of("1.5.12")).code == 0
    assert run("uninstall").code == 0
    assert host.tree() == before


def test_where_the_toolkits_name_leads_to_the_hook_the_wrapper_does_not_call_itself(host, run, package_of):
    host.new_toolkit()
    before = host.tree()
    assert run("install", "--package", package_of("1.5.10")).code == 0
    assert host.works("1.5.10")
    assert host.tree()[TOOLKIT] == before[HOOK]
    assert run("install", "--package", package_of("1.5.10")).out.endswith("nothing to do\n")
    assert run("upgrade", "--package", package_of("1.5.12")).code == 0
    assert host.tree()[TOOLKIT] == before[HOOK]
    assert run("uninstall").code == 0
    assert (host.tree(), host.state()) == (before, [])


def test_a_toolkit_that_is_renewed_under_the_layer_is_repaired_and_brought_back(host, run, package_of):
    host.new_toolkit()
    assert run("install", "--package", package_of("1.5.10")).code == 0
    (host.root / TOOLKIT).unlink()  # only the link comes back: it would lead to the wrapper
    host.link(TOOLKIT, "nvidia-container-runtime-hook")
    assert run("install", "--package", package_of("1.5.10")).code == 0
    assert (host.root / TOOLKIT).read_text() == "the toolkit's hook"
    host.write(HOOK, "a newer hook")
    (host.root / TOOLKIT).unlink()
    host.link(TOOLKIT, "/usr/bin/nvidia-container-runtime-hook")
    before = host.tree()
    assert run("install", "--package", package_of("1.5.10")).code == 0
    assert host.works("1.5.10")
    assert (host.root / TOOLKIT).read_text() == "a newer hook"
    assert run("uninstall").code == 0
    assert {name: host.tree()[name] for name in (HOOK, TOOLKIT)} == {name: before[name] for name in (HOOK, TOOLKIT)}


def test_a_toolkit_that_somebody_replaced_since_is_left_to_them(host, run, package_of):
    host.new_toolkit()
    assert run("install", "--package", package_of("1.5.10")).code == 0
    host.write(TOOLKIT, "a program of its own again")
    assert run("upgrade", "--package", package_of("1.5.12")).code == 0
    assert run("uninstall").code == 0
    assert (host.root / TOOLKIT).read_text() == "a program of its own again"


def test_a_hook_that_somebody_renewed_since_is_left_to_them_and_found_by_status(installed, run, package_of):
    installed.write(HOOK, "a newer toolkit's hook")
    assert f"changed since: /{HOOK}" in run("status").out
    assert run("upgrade", "--package", package_of("1.5.12")).code == 0
    assert installed.works("1.5.12")
    assert run("uninstall").code == 0
    assert (installed.root / HOOK).read_text() == "a newer toolkit's hook"


def test_a_layer_for_a_kernel_that_is_gone_can_be_removed(installed, run):
    installed.reboot()
    installed.write("proc/sys/kernel/osrelease", "6.6.0-new\n")
    shutil.rmtree(installed.root / "lib/modules" / KERNEL)
    assert run("uninstall").code == 0
    assert installed.state() == []
    assert str((installed.root / HOOK).readlink()) == "/usr/bin/nvidia-container-toolkit"


def test_install_repairs_what_somebody_changed(installed, run, package_of):
    installed.write(HOOK, "a newer toolkit's hook")
    assert run("install", "--package", package_of("1.5.10")).code == 0
    assert installed.works("1.5.10")
    assert run("uninstall").code == 0
    assert (installed.root / HOOK).read_text() == "a newer toolkit's hook"


def test_a_configuration_that_a_person_edited_stays(installed, run, package_of):
    installed.write("etc/cgpu.conf", "ServerAddress=10.0.0.1\n")
    assert run("upgrade", "--package", package_of("1.5.12")).code == 0
    assert (installed.root / "etc/cgpu.conf").read_text() == "ServerAddress=10.0.0.1\n"
    assert run("uninstall").code == 0
    assert (installed.root / "etc/cgpu.conf").read_text() == "ServerAddress=10.0.0.1\n"


def test_a_dry_run_says_who_would_keep_it_from_happening(installed, run):
    installed.container(900)
    assert "it would be refused now: container 3f3f3f3f3f3f, pod" in run("uninstall", "--dry-run").out


@pytest.mark.parametrize("command", ["install", "upgrade", "uninstall"])
def test_a_dry_run_changes_nothing_and_shows_the_steps(host, run, package_of, command):
    if command != "install":
        assert run("install", "--package", package_of("1.5.10")).code == 0
    before = host.tree(), host.state()
    package = [] if command == "uninstall" else ["--package", package_of("1.5.12")]
    result = run(command, *package, "--dry-run")
    assert result.code == 0, result.err
    assert "would take these steps:\n  1. " in result.out
    assert f"/{HOOK}" in result.out
    assert (host.tree(), host.state()) == before
