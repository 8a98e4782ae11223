"""Settings: where they come from, and what is wrong with them."""

import argparse
from pathlib import Path

import pytest

from gpuagent.domain.sharing.grant import DeviceStrategy
from gpuagent.domain.sharing.mode import Mode, Resources
from gpuagent.domain.sharing.units import MemoryUnit
from gpuagent.settings.settings import TABLE, Settings, load
from gpuagent.settings.table import ConfigError

NODE = {"NODE_NAME": "n1"}


@pytest.fixture
def file(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "gpuagent.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def parsed(*arguments: str) -> dict[str, str | None]:
    parser = argparse.ArgumentParser()
    TABLE.add_flags(parser)
    return vars(parser.parse_args(arguments))


def complaint(flags=None, env=None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(flags or {}, {**NODE, **(env or {})})
    return str(caught.value)


# -- where settings come from ----------------------------------------------------------------------------------


def test_the_defaults_need_only_the_node_name():
    settings = load({}, NODE)
    assert settings == Settings(node_name="n1")
    assert (settings.memory_unit, settings.max_pods_per_gpu, settings.mode) == (MemoryUnit(1024), 20, None)
    assert (settings.http_address, settings.kubelet_dir) == (("", 9445), Path("/var/lib/kubelet"))
    assert settings.resources == Resources(None)


def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default(file):
    path = file('memory-unit = "2GiB"\nmax-pods-per-gpu = 7\nlog-level = "debug"')
    env = {**NODE, "GPUAGENT_MEMORY_UNIT": "4GiB", "GPUAGENT_LOG_LEVEL": "error"}
    settings = load(parsed("--config", path, "--memory-unit", "8GiB"), env)
    assert settings.memory_unit == MemoryUnit(8192)
    assert settings.log_level == "error"
    assert settings.max_pods_per_gpu == 7
    assert settings.log_format == "text"


@pytest.mark.parametrize(("text", "path"), [("off", None), ("", None), ("/run/f.json", Path("/run/f.json"))])
def test_the_fence_file_is_named_or_off(text, path):
    settings = load({"fence_file": text}, NODE)
    assert (settings.fence_file, settings.policy.fence_file) == (path, str(path or ""))
    assert load({}, NODE).fence_file == Path("/etc/nvidia-device-plugin/unhealthyDevices.json")
    assert "--fence-file" in complaint({"fence_file": "here.json"})


def test_the_file_may_be_named_by_the_environment_and_a_flag_names_another(file, tmp_path):
    one = file("max-pods-per-gpu = 1")
    two = tmp_path / "two.toml"
    two.write_text("max-pods-per-gpu = 2")
    env = {**NODE, "GPUAGENT_CONFIG": one}
    assert load({}, env).max_pods_per_gpu == 1
    assert load(parsed("--config", str(two)), env).max_pods_per_gpu == 2


@pytest.mark.parametrize(
    ("flags", "env", "name"),
    [
        ((), {"NODE_NAME": "downward"}, "downward"),
        ((), {"NODE_NAME": "downward", "GPUAGENT_NODE_NAME": "own"}, "own"),
        (("--node-name", "flag"), {"NODE_NAME": "downward", "GPUAGENT_NODE_NAME": "own"}, "flag"),
    ],
)
def test_the_node_name_has_a_second_variable_that_yields(flags, env, name):
    assert load(parsed(*flags), env).node_name == name


def test_every_setting_can_come_from_all_three_places(file):
    texts = {
        "node-name": ("n2", "n2"),
        "kubeconfig": ("/etc/k.conf", Path("/etc/k.conf")),
        "kubelet-dir": ("/data/kubelet", Path("/data/kubelet")),
        "state-dir": ("/data/agent", Path("/data/agent")),
        "simulate": ("dgx2", "dgx2"),
        "mode": ("core_mem", Mode.CORE_MEM),
        "memory-unit": ("256MiB", MemoryUnit(256)),
        "max-pods-per-gpu": ("3", 3),
        "isolation": ("none", "none"),
        "allow-unisolated": ("true", True),
        "exclusive-resource": ("nvidia.com/gpu", "nvidia.com/gpu"),
        "device-strategy": ("cdi", DeviceStrategy.CDI),
        "http-address": ("127.0.0.1:80", ("127.0.0.1", 80)),
        "settle": ("1.5", 1.5),
        "ignore-xids": ("63, 94", frozenset({63, 94})),
        "fatal-xids": ("31", frozenset({31})),
        "startup-taint": ("example.com/gpu-starting", "example.com/gpu-starting"),
        "log-format": ("json", "json"),
        "log-level": ("debug", "debug"),
    }
    for name, (text, value) in texts.items():
        field = name.replace("-", "_")
        path = file(f'{name} = "{text}"')
        assert getattr(load(parsed(f"--{name}", text), NODE), field) == value
        assert getattr(load({}, {**NODE, f"GPUAGENT_{field.upper()}": text}), field) == value
        assert getattr(load({"config": path}, {} if name == "node-name" else NODE), field) == value
    assert {name.replace("-", "_") for name in texts} <= set(Settings.__dataclass_fields__)


def test_a_file_may_use_toml_numbers_and_truth_values(file):
    settings = load({"config": file("max-pods-per-gpu = 4\nallow-unisolated = true\nsettle = 2.5")}, NODE)
    assert (settings.max_pods_per_gpu, settings.allow_unisolated, settings.settle) == (4, True, 2.5)


def test_an_administrators_xids_are_added_to_and_taken_from_the_harmless_ones():
    policy = load(parsed("--ignore-xids", "94", "--fatal-xids", "13,62"), NODE).policy
    assert policy.harmless_xids == frozenset({31, 43, 45, 68, 94, 109})
    assert complaint(parsed("--ignore-xids", "94,95", "--fatal-xids", "95")) == (
        "--ignore-xids and --fatal-xids both name XID 95: leave it in one of them"
    )


def test_a_switch_needs_no_value_as_a_flag():
    assert load(parsed("--allow-unisolated"), NODE).allow_unisolated is True
    assert load(parsed("--allow-unisolated", "false"), NODE).allow_unisolated is False
    assert load(parsed(), NODE).allow_unisolated is False


def test_help_names_every_setting_with_its_default_and_variable():
    parser = argparse.ArgumentParser()
    TABLE.add_flags(parser)
    text = " ".join(parser.format_help().split())
    for part in ("--memory-unit UNIT", "(default: GiB)", "GPUAGENT_MEMORY_UNIT", "NODE_NAME", "(default: :9445)"):
        assert part in text


# -- unknown settings ------------------------------------------------------------------------------------------


def test_an_unknown_variable_of_ours_is_named():
    assert complaint(env={"GPUAGENT_MEMORY_UNITS": "GiB", "GPUAGENT_X": ""}) == (
        "environment: unknown setting GPUAGENT_MEMORY_UNITS, GPUAGENT_X"
    )


def test_an_unknown_key_of_the_file_is_named_with_the_file(file):
    path = file('memory_unit = "GiB"\nx = 1')
    assert complaint({"config": path}) == f"{path}: unknown setting memory_unit, x"


@pytest.mark.parametrize(
    "name",
    [
        "GPUAGENT_SERVICE_HOST",
        "GPUAGENT_SERVICE_PORT",
        "GPUAGENT_SERVICE_PORT_METRICS",
        "GPUAGENT_PORT",
        "GPUAGENT_PORT_9445_TCP",
        "GPUAGENT_PORT_9445_TCP_ADDR",
        "GPUAGENT_METRICS_SERVICE_HOST",
        "GPUAGENT_METRICS_SERVICE_PORT",
        "GPUAGENT_METRICS_SERVICE_PORT_HTTP",
        "GPUAGENT_METRICS_PORT",
        "GPUAGENT_METRICS_PORT_9445_TCP_PROTO",
    ],
)
def test_variables_that_kubernetes_sets_for_services_are_not_ours(name):
    """For a Service named gpuagent, and for one named gpuagent-metrics."""
    assert load({}, {**NODE, name: "10.0.0.1"}) == Settings(node_name="n1")


def test_variables_of_others_are_nothing_to_us():
    assert load({}, {**NODE, "PATH": "/bin", "GPU_AGENT_MODE": "x"}) == Settings(node_name="n1")


# -- bad values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("kubeconfig", "k.conf", "'k.conf' is not an absolute path"),
        ("kubelet-dir", "", "'' is not an absolute path"),
        ("mode", "shared", "'shared' is not one of default, share, cgpu, mps, core_mem, topology"),
        ("memory-unit", "1.5GiB", "'1.5GiB' is not a whole block"),
        ("memory-unit", "0GiB", "'0GiB' is not a whole block"),
        ("max-pods-per-gpu", "0", "'0' is not a whole number of 1 or more"),
        ("max-pods-per-gpu", "many", "'many' is not a whole number of 1 or more"),
        ("max-pods-per-gpu", "-1", "'-1' is not a whole number of 1 or more"),
        ("isolation", "magic", "'magic' is not one of auto"),
        ("allow-unisolated", "maybe", "'maybe' is neither true nor false"),
        ("exclusive-resource", "gpu", "'gpu' is not a resource name such as nvidia.com/gpu"),
        ("exclusive-resource", "a/b/c", "'a/b/c' is not a resource name"),
        ("exclusive-resource", "kubernetes.io/gpu", "is not a resource name"),
        ("exclusive-resource", "requests.nvidia.com/gpu", "is not a resource name"),
        ("exclusive-resource", "Example.com/gpu", "is not a resource name"),
        ("exclusive-resource", "example.com/gpü", "is not a resource name"),
        ("exclusive-resource", "aliyun.com/gpu", "is one of the agent's own resources"),
        ("device-strategy", "hooks", "'hooks' is not one of device-nodes, cdi"),
        ("http-address", "localhost", "'localhost' is not HOST:PORT, :PORT or off"),
        ("http-address", ":65536", "':65536' is not HOST:PORT, :PORT or off"),
        ("settle", "1m", "'1m' is not a number of seconds"),
        ("settle", "-1", "'-1' is not a number of seconds from 0 to 999999"),
        ("settle", "nan", "'nan' is not a number of seconds"),
        ("settle", "1000000", "'1000000' is not a number of seconds"),
        ("ignore-xids", "63;94", "'63;94' is not the number of an XID"),
        ("startup-taint", "example.com/starting=yes", "'example.com/starting=yes' is not the key of a taint"),
        ("startup-taint", "example.com/starting:NoSchedule", "(no value, no effect)"),
        ("startup-taint", "Example.com/starting", "is not the key of a taint"),
        ("startup-taint", "example.com/", "is not the key of a taint"),
        ("startup-taint", f"{'a' * 254}/starting", "is not the key of a taint"),
        ("exclusive-resource", f"{'a.' * 122}a/gpu", "is not a resource name"),
        ("startup-taint", "node.kubernetes.io/not-ready", "is a taint of Kubernetes' own"),
        ("log-format", "xml", "'xml' is not one of text, json"),
        ("log-level", "loud", "'loud' is not one of debug, info, warning, error"),
    ],
)
def test_a_bad_value_says_where_it_came_from_and_what_is_wrong(file, name, text, expected):
    variable = f"GPUAGENT_{name.replace('-', '_').upper()}"
    path = file(f'{name} = "{text}"')
    for source, message in (
        (f"--{name}", complaint({name.replace("-", "_"): text})),
        (variable, complaint(env={variable: text})),
        (f"{path}: {name}", complaint({"config": path})),
    ):
        assert message.startswith(f"{source}: ")
        assert expected in message


def test_a_bad_value_that_is_overruled_is_nothing_to_complain_of():
    assert load({"log_level": "debug"}, {**NODE, "GPUAGENT_LOG_LEVEL": "loud"}).log_level == "debug"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mode = share", "is not TOML"),
        ("max-pods-per-gpu = 1.5", "max-pods-per-gpu: '1.5' is not a whole number"),
        ("mode = ['share']", "mode is neither a text nor a number nor true or false"),
        ("[mode]\nx = 1", "mode is neither"),
    ],
)
def test_a_bad_file_is_named(file, text, expected):
    path = file(text)
    message = complaint({"config": path})
    assert path in message
    assert expected in message


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    assert (
        complaint({"config": str(tmp_path / "none.toml")})
        == f"cannot read {tmp_path}/none.toml: No such file or directory"
    )
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    assert "is not TOML" in complaint({"config": str(tmp_path / "binary.toml")})


def test_without_a_node_name_a_mode_must_be_forced():
    with pytest.raises(ConfigError, match="--node-name .* is needed"):
        load({}, {})
    assert load({"mode": "share"}, {}).mode is Mode.SHARE


def test_mode_dra_needs_an_api_server():
    with pytest.raises(ConfigError, match="mode dra needs an API server"):
        load({"mode": "dra", "node_name": "n"}, {})
    assert load({"mode": "dra", "node_name": "n", "kubeconfig": "/k"}, {}).mode is Mode.DRA


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":9445", ("", 9445)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:80", ("::1", 80)),
        ("localhost:0", ("localhost", 0)),
        ("off", None),
        ("", None),
    ],
)
def test_addresses(text, address):
    assert load({"http_address": text}, NODE).http_address == address


def test_an_api_server_is_used_unless_a_mode_is_forced_and_none_is_named(monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert load({}, NODE).uses_api_server
    assert not load({"mode": "share"}, NODE).uses_api_server
    assert load({"mode": "share", "kubeconfig": "/k"}, NODE).uses_api_server
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert load({"mode": "share"}, NODE).uses_api_server
