"""The checks: what is found on a fake host, and the verdict on it."""

import json
import shutil
from dataclasses import replace

import pytest
import yaml

from gpuagent.host.cgpu_proc import Version
from gpuisolation import matrix, preflight_checks
from gpuisolation.host.facts import GpuInfo, HostFacts
from gpuisolation.host.gpu_users import User
from gpuisolation.host.kubelet import CpuPolicy
from gpuisolation.preflight_checks import LayerKind, Question, Verdict
from tests.unit.installer.fakehost import CONTAINER, sums

GOOD = HostFacts(
    os_name="Alibaba Cloud Linux 3",
    os_id="alinux",
    os_version="3",
    kernel="5.10.134",
    driver="550.90.07",
    gpus=(GpuInfo("0000:00:07.0", "Tesla T4", "GPU-0", 0),),
    docker="20.10.24",
    vendor="Alibaba Cloud / Alibaba Cloud ECS",
    cpu=CpuPolicy("none", "/var/lib/kubelet/config.yaml", True),
    cgroup=1,
    pods_cgroups=("/sys/fs/cgroup/kubepods",),
    mps_control=True,
    hook=True,
    toolkit=True,
)


def row(
    check: str, layer: LayerKind = LayerKind.CGPU, version: Version | None = None, ignore=(), **facts
) -> preflight_checks.Row:
    question = Question(facts=replace(GOOD, **facts), layer=layer, version=version, ignore=ignore)
    (found,) = [row for row in preflight_checks.rows(question) if row.check == check]
    return found


def verdict(*arguments, **facts) -> Verdict:
    return row(*arguments, **facts).verdict


# -- the command ---------------------------------------------------------------------------------------------------


def test_a_good_node_passes(run):
    result = run("preflight")
    assert result.code == 0, result.out
    assert result.out.splitlines()[0].split() == ["CHECK", "VERDICT", "FOUND"]
    assert result.out.splitlines()[-1] == "nothing forbids it"


def test_the_table_fits_80_columns_and_says_what_was_wanted(run, host):
    host.write("etc/os-release", "ID=debian\nVERSION_ID=12\nPRETTY_NAME='Debian GNU/Linux 12 (bookworm)'\n")
    result = run("preflight")
    assert max(map(len, result.out.splitlines())) <= 80
    assert "os (bad): use a listed system, or MPS: preflight --layer mps. Wanted:" in result.out


def test_every_check_is_a_row_with_found_wanted_verdict_and_what_to_do(run):
    page = run("preflight", "-o", "json").json
    assert [row["check"] for row in page["checks"]] == list(preflight_checks.CHECKS)
    for row_ in page["checks"]:
        assert row_.keys() == {"check", "found", "wanted", "verdict", "todo"}
        assert row_["found"]
        assert row_["wanted"]
        assert row_["todo"] or row_["verdict"] in {"ok", "note"}
    assert page["refused"] == []
    assert yaml.safe_load(run("preflight", "-o", "yaml").out) == page


def test_a_bad_node_is_refused_by_exit_code_and_told_what_to_do(host, run):
    host.write("var/lib/kubelet/config.yaml", "cpuManagerPolicy: static\n")
    host.container(900)
    result = run("preflight", "-o", "json")
    assert result.code == 3
    assert result.json["refused"] == ["cpu-manager", "users"]
    text = run("preflight").out
    assert "set cpuManagerPolicy: none" in text
    assert text.endswith("refused: cpu-manager, users\n")
    assert run("preflight", "--accept", "cpu-manager", "-o", "json").json["refused"] == ["users"]


def test_it_changes_nothing(host, run):
    before = host.tree(), host.state()
    run("preflight")
    run("preflight", "--layer", "mps")
    run("preflight", "--layer", "limits")
    assert (host.tree(), host.state()) == before


def test_a_package_is_checked_with_the_node(run, package_of):
    found = {
        row["check"]: row for row in run("preflight", "--package", package_of("1.5.2"), "-o", "json").json["checks"]
    }
    assert found["cgpu-version"]["verdict"] == "bad"
    assert found["cgpu-driver"]["found"] == "550.90.07 with cGPU 1.5.2"
    assert found["cgpu-driver"]["verdict"] == "bad"
    assert found["cgpu-driver"]["todo"] == "take cGPU 1.5.3 to 1.5.20, or another driver"


def test_a_kernel_that_the_package_has_nothing_for_is_bad(host, run, package_of):
    def kernel(*arguments):
        return next(r for r in run("preflight", "-o", "json", *arguments).json["checks"] if r["check"] == "kernel")

    package = ("--package", package_of("1.5.10"))
    assert (kernel()["verdict"], kernel(*package)["verdict"]) == ("note", "ok")
    host.write("proc/sys/kernel/osrelease", "6.6.0-new\n")
    assert kernel(*package)["verdict"] == "bad"
    (package_of("1.5.10") / "Makefile").write_text("all:\n")
    sums(package_of("1.5.10"))
    assert kernel(*package)["verdict"] == "note"


def test_an_empty_root_gives_a_row_for_everything_and_no_trace(tmp_path, capsys):
    from gpuisolation import cli

    assert cli.run(["preflight", "--root", str(tmp_path), "-o", "json"]) == 3
    assert len(json.loads(capsys.readouterr().out)["checks"]) == len(preflight_checks.CHECKS)


# -- facts from other hosts -------------------------------------------------------------------------------------------


def facts_of(run) -> dict[str, str]:
    return {row["check"]: row["found"] for row in run("preflight", "-o", "json").json["checks"]}


def test_centos_has_its_minor_version_elsewhere(host, run):
    host.write("etc/os-release", 'ID="centos"\nVERSION_ID="7"\nPRETTY_NAME="CentOS Linux 7 (Core)"\n')
    host.write("etc/centos-release", "CentOS Linux release 7.8.2003 (Core)\n")
    assert "os" in run("preflight", "-o", "json").json["refused"]
    host.write("etc/centos-release", "CentOS Linux release 7.9.2009 (Core)\n")
    assert run("preflight", "-o", "json").json["refused"] == []


def test_links_of_the_host_stay_on_the_host(host, run):
    (host.root / "etc/os-release").unlink()
    host.write("usr/lib/os-release", "ID=ubuntu\nVERSION_ID=22.04\nPRETTY_NAME='Ubuntu 22.04.4 LTS'\n")
    host.link("etc/os-release", "/usr/lib/os-release")
    assert facts_of(run)["os"] == "Ubuntu 22.04.4 LTS"


# -- kubelet's CPU policy ---------------------------------------------------------------------------------------------

STATIC, NONE = "cpuManagerPolicy: static\n", "cpuManagerPolicy: none\n"
USUAL = "/var/lib/kubelet/config.yaml"


@pytest.mark.parametrize(
    ("command_line", "files", "found"),
    [
        ("kubelet --cpu-manager-policy=static", {}, "static (kubelet's flag)"),
        ("kubelet --cpu-manager-policy static", {}, "static (kubelet's flag)"),
        ("kubelet --cpu_manager_policy=static", {}, "static (kubelet's flag)"),
        ("kubelet --cpu-manager-policy=none --cpu-manager-policy=static", {}, "static (kubelet's flag)"),
        (f"kubelet --config={USUAL} --cpu-manager-policy=static", {USUAL: NONE}, "static (kubelet's flag)"),
        (f"kubelet --config={USUAL} --cpu-manager-policy=none", {USUAL: STATIC}, "none (kubelet's flag)"),
        (f"kubelet --config {USUAL}", {USUAL: STATIC}, f"static ({USUAL})"),
        ("kubelet --config=/etc/k.json", {"/etc/k.json": '{"cpuManagerPolicy": "static"}'}, "static (/etc/k.json)"),
        (f"kubelet --config={USUAL}", {USUAL: "maxPods: 110\n"}, f"none ({USUAL})"),
        (f"kubelet --config={USUAL}", {USUAL: "# cpuManagerPolicy: static\n"}, f"none ({USUAL})"),
        # Without --config it reads no file, whatever lies in the usual place.
        ("kubelet --v=2", {USUAL: STATIC}, "none (kubelet's default)"),
        ("kubelet", {USUAL: STATIC}, "none (kubelet's default)"),
        # Its directory is elsewhere, and the usual one has files of an earlier kubelet.
        (
            "kubelet --root-dir=/data/kubelet --config=/data/kubelet/config.yaml",
            {"/data/kubelet/config.yaml": STATIC, "/var/lib/kubelet/cpu_manager_state": '{"policyName": "none"}'},
            "static (/data/kubelet/config.yaml)",
        ),
        (
            "kubelet --root-dir=/data/kubelet --cpu-manager-policy=none",
            {USUAL: STATIC, "/var/lib/kubelet/cpu_manager_state": '{"policyName": "static"}'},
            "none (kubelet's flag)",
        ),
        (
            f"kubelet --config={USUAL} --config-dir=/etc/kubelet.d",
            {USUAL: NONE, "/etc/kubelet.d/10.conf": NONE, "/etc/kubelet.d/20.conf": STATIC, "/etc/kubelet.d/30": NONE},
            "static (/etc/kubelet.d/20.conf)",
        ),
        ("kubelet --config=kubelet.yaml", {"/opt/node/kubelet.yaml": STATIC}, "static (kubelet.yaml)"),
        ("hyperkube kubelet --cpu-manager-policy=static", {}, "static (kubelet's flag)"),
        ("k3s server --kubelet-arg=cpu-manager-policy=static", {}, "static (kubelet's flag)"),
        ("k3s agent --kubelet-arg cpu-manager-policy=static", {}, "static (kubelet's flag)"),
        (
            "k3s server",
            {"/etc/rancher/k3s/config.yaml": "kubelet-arg:\n  - cpu-manager-policy=static\n"},
            "static (kubelet's flag)",
        ),
        (
            "k3s server",
            {"/etc/rancher/k3s/config.yaml.d/10.yaml": "kubelet-arg+:\n  - cpu-manager-policy=static\n"},
            "static (kubelet's flag)",
        ),
        (
            "rke2 agent --config /opt/k.yaml",
            {"/opt/k.yaml": "kubelet-arg: cpu-manager-policy=static\n"},
            "static (kubelet's flag)",
        ),
        (
            "k3s agent",
            {"/etc/rancher/k3s/config.yaml": 'kubelet-arg: ["config=/x.yaml"]\n', "/x.yaml": STATIC},
            "static (/x.yaml)",
        ),
        ("kubelet --config=/q.yaml", {"/q.yaml": "'cpuManagerPolicy': !!str static\n"}, "static (/q.yaml)"),
        ("kubelet --config=/q.yaml", {"/q.yaml": "{ [\n"}, "unknown (/q.yaml, which cannot be read)"),
        ("ld-linux-x86-64.so.2 /usr/bin/kubelet --cpu-manager-policy=static", {}, "static (kubelet's flag)"),
        ("k3s server", {"/etc/rancher/k3s/config.yaml": "# cpu-manager-policy=static\n"}, "none (kubelet's default)"),
        (
            "kubelite --kubelet-args-file=/var/snap/args/kubelet",
            {"/var/snap/args/kubelet": "--root-dir=/x\n--cpu-manager-policy=static\n"},
            "static (kubelet's flag)",
        ),
    ],
)
def test_the_policy_of_the_kubelet_that_runs(host, run, command_line, files, found):
    (host.root / "var/lib/kubelet/config.yaml").unlink()
    host.write("proc/77/cmdline", "/usr/bin/" + command_line.replace(" ", "\0") + "\0")
    host.link("proc/77/cwd", "/opt/node")
    for path, text in files.items():
        host.write(path.lstrip("/"), text)
    assert facts_of(run)["cpu-manager"] == found


def test_a_kubelet_in_a_container_has_files_of_its_own(host, run):
    host.write("proc/77/cmdline", "kubelet\0--config=/inside/config.yaml\0")
    host.write("proc/77/root/inside/config.yaml", STATIC)
    assert facts_of(run)["cpu-manager"] == "static (/inside/config.yaml)"


def test_of_several_kubelets_one_with_the_static_policy_forbids(host, run):
    host.write("proc/78/cmdline", "kubelet\0--cpu-manager-policy=static\0")
    assert facts_of(run)["cpu-manager"] == "static (kubelet's flag)"


@pytest.mark.parametrize(
    "command_line", ["hyperkube\0kube-proxy\0", "vim\0kubelet\0", "kubelet-wrapper\0", "", "k3s\0etcd\0"]
)
def test_other_processes_are_no_kubelet(host, run, command_line):
    host.write("proc/77/cmdline", command_line)
    host.write("var/lib/kubelet/config.yaml", STATIC)
    row = next(r for r in run("preflight", "-o", "json").json["checks"] if r["check"] == "cpu-manager")
    assert (row["found"], row["verdict"]) == (f"static ({USUAL})", "bad")
    host.write("var/lib/kubelet/config.yaml", NONE)
    row = next(r for r in run("preflight", "-o", "json").json["checks"] if r["check"] == "cpu-manager")
    assert row["verdict"] == "warn"
    assert "no kubelet runs" in row["todo"]


def test_a_configuration_that_cannot_be_read_is_named(host, run):
    host.write("proc/77/cmdline", "kubelet\0--config=/absent.yaml\0")
    assert facts_of(run)["cpu-manager"] == "unknown (/absent.yaml, which cannot be read)"


def test_the_state_file_to_delete_is_that_of_this_kubelet(host, run):
    host.write("proc/77/cmdline", "kubelet\0--root-dir=/data/kubelet\0--cpu-manager-policy=static\0")
    assert "delete /data/kubelet/cpu_manager_state" in " ".join(run("preflight").out.split())


# -- verdicts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "facts", "wanted"),
    [
        ("os", {"os_id": "ubuntu", "os_version": "22.04"}, Verdict.OK),
        ("os", {"os_id": "alinux", "os_version": "2.1903"}, Verdict.OK),
        ("os", {"os_id": "ubuntu", "os_version": "24.04"}, Verdict.BAD),
        ("os", {"os_id": "", "os_version": ""}, Verdict.BAD),
        ("kernel", {"kernel": ""}, Verdict.BAD),
        ("driver", {"driver": "418.87.01"}, Verdict.OK),
        ("driver", {"driver": "418.87.00"}, Verdict.BAD),
        ("driver", {"driver": ""}, Verdict.BAD),
        ("runtime", {"docker": "19.03.5"}, Verdict.OK),
        ("runtime", {"docker": "19.03.4"}, Verdict.BAD),
        ("runtime", {"docker": "19.03.4", "containerd": "1.4.3"}, Verdict.OK),
        ("runtime", {"docker": "", "containerd": "1.4.2"}, Verdict.BAD),
        ("runtime", {"docker": ""}, Verdict.BAD),
        ("toolkit", {"toolkit": False, "hook": False}, Verdict.BAD),
        ("toolkit", {"toolkit": False}, Verdict.OK),
        ("gpu-family", {"gpus": ()}, Verdict.BAD),
        ("gpu-family", {"gpus": (GpuInfo("", "NVIDIA GeForce RTX 4090"),)}, Verdict.BAD),
        ("ecs", {"vendor": "QEMU"}, Verdict.BAD),
        ("ecs", {"vendor": ""}, Verdict.BAD),
        ("cpu-manager", {"cpu": CpuPolicy("static", "", True)}, Verdict.BAD),
        ("cpu-manager", {"cpu": CpuPolicy()}, Verdict.WARN),
        ("cpu-manager", {"cpu": CpuPolicy("none", "config.yaml")}, Verdict.WARN),
        ("cpu-manager", {"cpu": CpuPolicy("static", "config.yaml")}, Verdict.BAD),
        ("cgroup", {"cgroup": 2}, Verdict.WARN),
        ("cgroup", {"cgroup": None}, Verdict.WARN),
        ("mps", {"mps_control": False}, Verdict.NOTE),
        ("users", {"users": (User(pid=1, command="x", container=CONTAINER),)}, Verdict.BAD),
        ("users", {"users": (User(pid=1, command="x"),)}, Verdict.OK),
    ],
)
def test_the_verdict_for_cgpu(check, facts, wanted):
    assert verdict(check, **facts) is wanted
    assert row(check, **facts).todo or wanted in {Verdict.OK, Verdict.NOTE}


@pytest.mark.parametrize(
    ("check", "facts", "wanted"),
    [
        ("os", {"os_id": "debian"}, Verdict.OK),
        ("ecs", {"vendor": "QEMU"}, Verdict.NOTE),
        ("gpu-family", {"gpus": (GpuInfo("", "NVIDIA GeForce RTX 4090"),)}, Verdict.NOTE),
        ("mps", {"gpus": (GpuInfo("", "NVIDIA GeForce RTX 4090"),)}, Verdict.OK),
        ("mps", {"gpus": (GpuInfo("", "Tesla P100-PCIE-16GB"),)}, Verdict.BAD),
        ("mps", {"gpus": (GpuInfo("", "NVIDIA GeForce GTX 1080"),)}, Verdict.BAD),
        ("mps", {"mps_control": False}, Verdict.BAD),
        ("cgroup", {"cgroup": 2}, Verdict.OK),
        ("driver", {"driver": ""}, Verdict.BAD),
    ],
)
def test_the_verdict_for_mps(check, facts, wanted):
    assert verdict(check, LayerKind.MPS, **facts) is wanted


@pytest.mark.parametrize(
    ("version", "driver", "wanted"),
    [
        ("1.5.3", "575.57.08", Verdict.OK),
        ("1.5.20", "460.32.03", Verdict.OK),
        ("1.5.20", "580.65.06", Verdict.BAD),
        ("1.5.2", "470.161.03", Verdict.OK),
        ("1.5.2", "470.199.02", Verdict.BAD),
        ("1.5.2", "535.54.03", Verdict.BAD),
        ("1.0.5", "525.89.03", Verdict.OK),
        ("1.0.3", "470.161.03", Verdict.OK),
        ("0.8.13", "510.108.03", Verdict.BAD),
        ("1.0.4", "470.161.03", Verdict.WARN),
        ("1.5.21", "550.90.07", Verdict.WARN),
        ("0.8.8", "418.87.01", Verdict.WARN),
    ],
)
def test_the_matrix_of_cgpu_and_driver(version, driver, wanted):
    assert verdict("cgpu-driver", version=Version.parse(version), driver=driver) is wanted


@pytest.mark.parametrize(("driver", "wanted"), [("550.90.07", Verdict.OK), ("580.65.06", Verdict.BAD)])
def test_without_a_version_the_driver_is_sought_in_the_whole_matrix(driver, wanted):
    assert verdict("cgpu-driver", driver=driver) is wanted


@pytest.mark.parametrize(
    ("version", "wanted"), [("1.5.7", Verdict.BAD), ("1.5.8", Verdict.WARN), ("1.5.10", Verdict.OK)]
)
def test_versions_by_number(version, wanted):
    assert verdict("cgpu-version", version=Version.parse(version)) is wanted


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("Tesla P40", "P"),
        ("Tesla P100-PCIE-16GB", "P"),
        ("Tesla T4", "T"),
        ("Tesla V100-SXM2-32GB", "V"),
        ("Tesla V100S-PCIE-32GB", "V"),
        ("NVIDIA A10", "A"),
        ("NVIDIA A100-SXM4-80GB", "A"),
        ("NVIDIA H20", "H"),
        ("NVIDIA H100 80GB HBM3", "H"),
        ("NVIDIA L20", "L"),
        ("NVIDIA RTX A6000", ""),
        ("Quadro P4000", ""),
        ("Quadro T400", ""),
        ("NVIDIA GeForce RTX 4090", ""),
        ("", ""),
    ],
)
def test_families_by_model(model, family):
    assert matrix.family(model) == family


def test_nobody_can_wave_users_or_a_known_bad_version_through():
    bad = row("users", users=(User(pid=1, command="x", container=CONTAINER),))
    worse = row("cgpu-version", version=Version(1, 5, 2))
    assert preflight_checks.forbidding([bad, worse], {"users", "cgpu-version"}) == (bad, worse)


def test_a_monitor_that_is_named_is_no_user():
    assert verdict("users", ignore=["dcgm"], users=(User(pid=1, command="dcgm", container=CONTAINER),)) is Verdict.OK


# -- the driver's memory limits --------------------------------------------------------------------------------------


@pytest.fixture
def limits_host(host):
    """A node on which the driver can limit the memory of cgroups."""
    host.write(
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  615.71.09  Tue Sep  1 09:35:42 UTC 2026\n",
    )
    shutil.rmtree(host.root / "sys/fs/cgroup")
    host.write("sys/fs/cgroup/cgroup.controllers", "cpu memory misc\n")
    host.write("sys/fs/cgroup/kubepods.slice/cgroup.controllers", "cpu memory misc\n")
    return host


def limits_rows(run) -> dict[str, dict[str, str]]:
    page = run("preflight", "--layer", "limits", "-o", "json").json
    return {row["check"]: row for row in page["checks"]} | {"refused": page["refused"]}


def test_a_node_that_can_limit_memory_passes(limits_host, run):
    result = run("preflight", "--layer", "limits")
    assert result.code == 0, result.out
    assert limits_rows(run)["pod-cgroups"]["found"] == "/sys/fs/cgroup/kubepods.slice"


@pytest.mark.parametrize(
    ("file", "text", "check", "verdict", "todo"),
    [
        (
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  x\n",
            "driver",
            "bad",
            "upgrade the driver to 615 or later",
        ),
        (
            "proc/driver/nvidia/params",
            'RegistryDwords: "RMFoo=1;RmMemacctMode=0"\n',
            "accounting",
            "bad",
            "remove RmMemacctMode=0",
        ),
        ("proc/driver/nvidia/params", 'RegistryDwords: "RmMemacctMode=0x0"\n', "accounting", "bad", "reboot"),
        ("proc/driver/nvidia/params", 'RegistryDwords: "RmMemacctMode=1"\n', "accounting", "ok", ""),
        ("gpus", "0, Enabled\n1, Disabled\n", "mig", "warn", "nvidia-smi -i GPU -mig 0"),
        ("gpus", "0, Enabled\n1, Enabled\n", "mig", "bad", "nvidia-smi -i GPU -mig 0"),
        ("sys/fs/cgroup/kubelet.slice/kubelet-kubepods.slice/x", "", "pod-cgroups", "warn", "limits.podsCgroup"),
    ],
)
def test_what_keeps_a_node_from_limits_is_a_sentence(limits_host, run, file, text, check, verdict, todo):
    limits_host.write(file, text)
    rows = limits_rows(run)
    assert (rows[check]["verdict"], todo in rows[check]["todo"]) == (verdict, True), rows[check]
    assert rows["refused"] == ([check] if verdict == "bad" else [])


def test_a_kubelet_without_cgroups_of_pods_is_refused(limits_host, run):
    shutil.rmtree(limits_host.root / "sys/fs/cgroup/kubepods.slice")
    rows = limits_rows(run)
    assert rows["refused"] == ["pod-cgroups"]
    assert "cgroupsPerQOS: true" in rows["pod-cgroups"]["todo"]


OFF, ON = "cgroupsPerQOS: false\n", "cgroupsPerQOS: true\n"


@pytest.mark.parametrize(
    ("command_line", "files", "found"),
    [
        (f"kubelet --config={USUAL}", {USUAL: OFF}, f"cgroupsPerQOS: false ({USUAL})"),
        ("kubelet --cgroups-per-qos=false", {}, "cgroupsPerQOS: false (kubelet's flag)"),
        (f"kubelet --cgroups-per-qos=true --config={USUAL}", {USUAL: OFF}, "/sys/fs/cgroup/kubepods.slice"),
        (f"kubelet --config={USUAL}", {USUAL: ON}, "/sys/fs/cgroup/kubepods.slice"),
        (
            f"kubelet --config={USUAL} --config-dir=/etc/kubelet.d",
            {USUAL: ON, "/etc/kubelet.d/10.conf": OFF, "/etc/kubelet.d/20.conf": NONE},
            "cgroupsPerQOS: false (/etc/kubelet.d/10.conf)",
        ),
        (
            f"kubelet --config={USUAL} --config-dir=/etc/kubelet.d",
            {USUAL: OFF, "/etc/kubelet.d/10.conf": ON},
            "/sys/fs/cgroup/kubepods.slice",
        ),
        ("kubelet", {USUAL: OFF}, "/sys/fs/cgroup/kubepods.slice"),
    ],
)
def test_cgroups_of_pods_from_before_a_setting_do_not_count(limits_host, run, command_line, files, found):
    limits_host.write("proc/77/cmdline", "/usr/bin/" + command_line.replace(" ", "\0") + "\0")
    for path, text in files.items():
        limits_host.write(path.lstrip("/"), text)
    rows = limits_rows(run)
    assert rows["pod-cgroups"]["found"] == found
    assert rows["refused"] == (["pod-cgroups"] if "false" in found else [])


@pytest.mark.parametrize(
    ("version", "verdict", "found"),
    [("1.20.1", "note", "version 1.20.1"), ("1.20.0", "ok", "version 1.20.0"), ("", "ok", "nvidia-container-toolkit")],
)
def test_the_toolkit_whose_hook_obeys_the_container_is_noted(limits_host, run, version, verdict, found):
    command = limits_host.root / "usr/bin/nvidia-ctk"
    if version:
        command.write_text(f"echo 'NVIDIA Container Toolkit CLI version {version}'\n")
    else:
        command.unlink()
    row = limits_rows(run)["toolkit"]
    assert (row["verdict"], found in row["found"]) == (verdict, True), row
    assert ("gpu-memory-limits" in row["todo"]) is (verdict == "note")


def test_nvidia_smi_is_not_asked_where_no_driver_is_loaded(limits_host, run):
    """It would load the driver."""
    (limits_host.root / "proc/driver/nvidia/version").unlink()
    limits_host.write("gpus", "0, Enabled\n")
    assert limits_rows(run)["mig"]["found"] == "none"


@pytest.mark.parametrize(
    ("check", "facts", "wanted"),
    [
        ("cgroup", {"cgroup": 2}, Verdict.OK),
        ("cgroup", {"cgroup": 1}, Verdict.BAD),
        ("cgroup", {"cgroup": None}, Verdict.WARN),
        ("driver", {"driver": "615.71.09"}, Verdict.OK),
        ("driver", {"driver": "1000.1"}, Verdict.OK),
        ("driver", {"driver": "610.43.02"}, Verdict.BAD),
        ("driver", {"driver": ""}, Verdict.BAD),
        ("os", {"os_id": "debian"}, Verdict.OK),
        ("ecs", {"vendor": "QEMU"}, Verdict.NOTE),
        ("gpu-family", {"gpus": (GpuInfo("", "NVIDIA L40S"),)}, Verdict.NOTE),
        ("gpu-family", {"gpus": ()}, Verdict.BAD),
        ("runtime", {"docker": ""}, Verdict.NOTE),
        ("toolkit", {"toolkit": False, "hook": False}, Verdict.OK),
        ("cpu-manager", {"cpu": CpuPolicy("static", "", True)}, Verdict.NOTE),
        ("cgpu-driver", {"driver": "615.71.09"}, Verdict.NOTE),
        ("mps", {"mps_control": False}, Verdict.NOTE),
        ("users", {"users": (User(pid=1, command="x", container=CONTAINER),)}, Verdict.NOTE),
    ],
)
def test_the_verdict_for_limits(check, facts, wanted):
    assert verdict(check, LayerKind.LIMITS, **facts) is wanted


@pytest.mark.parametrize("layer", [LayerKind.CGPU, LayerKind.MPS])
def test_what_only_limits_need_forbids_no_other_layer(layer):
    for check, facts in (("pod-cgroups", {"pods_cgroups": ()}), ("accounting", {"memory_accounting": "0"})):
        assert verdict(check, layer, **facts) is Verdict.NOTE
