"""The checks: what is found on a fake host, and the verdict on it."""

import json
from dataclasses import replace

import pytest
import yaml

from gpuagent.host.cgpu_proc import Version
from gpuisolation import matrix, preflight_checks
from gpuisolation.host.facts import GpuInfo, HostFacts
from gpuisolation.host.users import User
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
    cpu_policy="none",
    cpu_policy_from="/var/lib/kubelet/cpu_manager_state",
    cgroup=1,
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
    host.write("var/lib/kubelet/cpu_manager_state", json.dumps({"policyName": "static"}))
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


@pytest.mark.parametrize(
    ("flags", "config", "found"),
    [
        ("--cpu-manager-policy=static", "cpuManagerPolicy: none\n", "static (kubelet's flag)"),
        ("--cpu-manager-policy\0static", "", "static (kubelet's flag)"),
        ("--v=2", "cpuManagerPolicy: static\n", "static (/var/lib/kubelet/config.yaml)"),
        ("--config=/etc/kubelet.json", '{"cpuManagerPolicy": "static"}', "static (/etc/kubelet.json)"),
        ("--v=2", "maxPods: 110\n", "none (/var/lib/kubelet/config.yaml)"),
    ],
)
def test_kubelets_policy_without_its_state_file(host, run, flags, config, found):
    (host.root / "var/lib/kubelet/cpu_manager_state").unlink()
    host.write("proc/77/cmdline", f"/usr/bin/kubelet\0{flags}\0")
    host.write("etc/kubelet.json" if "/etc/kubelet.json" in flags else "var/lib/kubelet/config.yaml", config)
    assert facts_of(run)["cpu-manager"] == found


def test_a_garbled_state_file_is_passed_over(host, run):
    host.write("var/lib/kubelet/cpu_manager_state", "{")
    host.write("var/lib/kubelet/config.yaml", "cpuManagerPolicy: 'static'\n")
    assert facts_of(run)["cpu-manager"].startswith("static")


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
        ("cpu-manager", {"cpu_policy": "static"}, Verdict.BAD),
        ("cpu-manager", {"cpu_policy": ""}, Verdict.WARN),
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
