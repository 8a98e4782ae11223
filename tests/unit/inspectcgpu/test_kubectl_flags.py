"""Kubectl's own flags: the same meaning as kubectl's, or a sentence that names the alternative."""

import json
from pathlib import Path

import pytest
import yaml

from inspectcgpu.arguments import REFUSED, as_argparse_takes
from inspectcgpu.flags import ALL, request_timeout
from standin.api.server import ApiServer
from standin.certificates import make_server_certificate
from tests.unit.inspectcgpu.sample_cluster import add_node, add_pod

pytestmark = pytest.mark.filterwarnings("ignore:Unverified HTTPS request")  # the program ignores it, too


def names(out):
    return [line.removeprefix("node/") for line in out.splitlines()]


# -- which nodes, which pods --------------------------------------------------------------------------------------


@pytest.fixture
def zones(server):
    for name, zone in (("n1", "a"), ("n2", "b"), ("n3", "a")):
        add_node(server, name, gpus=1, mem=15, labels={"zone": zone})
        add_pod(server, f"on-{name}", name, 3, 0)


@pytest.mark.parametrize(("flag", "shown"), [("zone=a", ["n1", "n3"]), ("zone!=a", ["n2"]), ("!zone", [])])
def test_a_selector_selects_nodes(zones, call, flag, shown):
    code, out, err = call("-l", flag, "-o", "name")
    assert (code, names(out)) == (0, shown)
    _, out, err = call("-l", flag)
    assert [line.split()[0] for line in out.splitlines()[1 : 1 + len(shown)]] == shown
    assert err == ("" if shown else f"no GPU node has the labels {flag}\n")


def test_with_a_selector_pods_of_other_nodes_and_of_none_are_left_out(server, zones, call):
    server.create_pod("waits", {"aliyun.com/gpu-mem": "3"}, node="")
    assert "waits" in call()[1]
    _, out, _ = call("-l", "zone=b", "-d")
    assert "on-n2" in out
    assert "on-n1" not in out
    assert "waits" not in out


def test_nodes_are_named_or_selected_and_not_both(call):
    code, _, err = call("n1", "-l", "zone=a")
    assert (code, err) == (2, "kubectl-inspect-cgpu: nodes are named, and selected with -l: do one of both\n")


def test_a_namespace_selects_the_pods_that_are_listed_and_amounts_count_all(server, call):
    add_node(server, "n1", gpus=1, mem=15)
    add_pod(server, "mine", "n1", 3, 0, namespace="team-a")
    add_pod(server, "theirs", "n1", 4, 0, namespace="team-b")
    server.create_pod("waits", {"aliyun.com/gpu-mem": "3"}, namespace="team-b", node="")
    _, out, _ = call("-d", "-n", "team-a")
    assert "mine" in out
    assert "theirs" not in out
    assert "waits" not in out
    assert "7/15 (46%)" in out
    assert "- only pods of namespace team-a are listed; amounts count the pods of all namespaces" in out
    for all_of_them in (("-d",), ("-d", "-A"), ("-d", "-n", "team-a", "--all-namespaces")):
        _, out, _ = call(*all_of_them)
        assert "mine" in out
        assert "theirs" in out
    note = "- no pod of namespace teamb asks for GPUs; did you mean team-b?; amounts count the pods of all namespaces"
    assert note in call("-n", "teamb")[1]
    (node,) = json.loads(call("-o", "json", "--namespace", "team-b")[1])["nodes"]
    assert [pod["name"] for pod in node["pods"]] == ["theirs"]


def test_why_is_about_a_pod_of_one_namespace(call):
    assert call("--why", "p", "-A")[0] == 2
    assert call("--why", "p", "n1")[0] == 2


def test_names_of_nodes_are_as_kubectl_prints_them(server, call):
    add_node(server, "n1", gpus=1, mem=15)
    add_node(server, "n2", "topology", whole=4, allocatable={"aliyun.com/gpu": 3})
    assert call("-o", "name") == (0, "node/n1\nnode/n2\n", "")
    code, out, _ = call("--health", "--no-agents", "-o", "name")
    assert (code, out) == (1, "node/n2\n"), "with --health, the nodes with a problem"
    assert call("--why", "p", "-o", "name")[0] == 2


@pytest.mark.parametrize("kind", ["node", "nodes", "no"])
def test_nodes_are_named_as_kubectl_prints_them(server, call, kind):
    add_node(server, "n1", gpus=1, mem=15)
    add_node(server, "n2", gpus=1, mem=15)
    assert call(f"{kind}/n2", "-o", "name") == (0, "node/n2\n", "")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["--why", ""],
            "'' names no pod: --why is about a pod or what makes pods, as in kubectl inspect cgpu --why chat",
        ),
        (["--why", "pod/"], "'pod/' names no pod"),
        (["--why", "node/n1"], "'node/n1' has a kind that --why does not know: write the name of a pod, or KIND/NAME"),
        ([""], "'' names no node: a node has a name, as in kubectl inspect cgpu gpu-1"),
        (["n1", "node/ "], "'node/ ' names no node"),
        (["pod/chat"], "'pod/chat' is not the name of a node: write the name alone, or node/NAME"),
    ],
)
def test_a_name_that_names_nothing_is_refused(call, arguments, text):
    code, out, err = call(*arguments)
    assert (code, out, text in err) == (2, "", True), err


def test_a_node_that_is_called_status_has_a_name_with_its_kind(server, call):
    add_node(server, "status", gpus=1, mem=15)
    assert call("node/status", "-o", "name") == (0, "node/status\n", "")


# -- which cluster, and as whom -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_server_certificate(tmp_path_factory.mktemp("tls") / "server")


@pytest.fixture
def secure(certificate):
    with ApiServer("n0", certificate=certificate) as server:
        server.token = "secret"
        add_node(server, "n1", gpus=1, mem=15)
        yield server


def write(path: Path, *, clusters=None, users=None, contexts=None, current="") -> str:
    config = {
        "clusters": [{"name": name, "cluster": fields} for name, fields in (clusters or {}).items()],
        "users": [{"name": name, "user": fields} for name, fields in (users or {}).items()],
        "contexts": [{"name": name, "context": fields} for name, fields in (contexts or {}).items()],
        "current-context": current,
    }
    path.write_text(yaml.safe_dump(config))
    return str(path)


@pytest.fixture
def away(tmp_path):
    """A kubeconfig of a cluster that does not answer, with a program to log in that fails."""
    failing = {"apiVersion": "client.authentication.k8s.io/v1", "command": "false", "interactiveMode": "Never"}
    return write(
        tmp_path / "away",
        clusters={"away": {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": True}},
        users={"failing": {"exec": failing}, "good": {"token": "secret"}},
        contexts={"away": {"cluster": "away", "user": "failing", "namespace": "x"}},
        current="away",
    )


def test_a_server_and_a_token_take_the_place_of_those_of_the_context(secure, call, away):
    flags = ("--server", secure.url, "--token", "secret", "-o", "name")
    assert call(*flags, environ={"KUBECONFIG": away}) == (0, "node/n1\n", "")
    assert call("-s", secure.url, "--user", "good", "-o", "name", environ={"KUBECONFIG": away})[:2] == (0, "node/n1\n")


def test_without_any_kubeconfig_flags_say_all(secure, call, certificate, tmp_path):
    where = ("--server", secure.url, "--token", "secret", "-o", "name")
    nowhere = {"HOME": str(tmp_path)}
    trusting = (*where, "--certificate-authority", str(certificate.authority))
    assert call(*trusting, environ=nowhere) == (0, "node/n1\n", "")
    assert call(*where, "--insecure-skip-tls-verify", environ=nowhere)[0] == 0
    assert call(*where, "--insecure-skip-tls-verify=true", environ=nowhere)[0] == 0
    code, _, err = call(*where, environ=nowhere)
    assert (code, "certificate" in err) == (1, True)
    code, _, err = call(*trusting, "--insecure-skip-tls-verify", environ=nowhere)
    assert (code, "choose one" in err) == (2, True)
    assert call(*trusting, "--tls-server-name", "kubernetes.default.svc", environ=nowhere)[0] == 0
    code, _, err = call(*trusting, "--tls-server-name", "other.example.com", environ=nowhere)
    assert (code, "certificate" in err) == (1, True)
    code, _, err = call("--server", "10.0.0.1:6443", environ=nowhere)
    assert (code, "--server '10.0.0.1:6443' is not a URL such as https://" in err) == (2, True)


def test_an_authority_in_a_flag_takes_the_place_of_that_of_the_cluster(secure, call, certificate, tmp_path):
    other = make_server_certificate(tmp_path / "other")
    file = write(
        tmp_path / "config",
        clusters={"c": {"server": secure.url, "certificate-authority": str(other.authority)}},
        users={"u": {"token": "secret"}},
        contexts={"x": {"cluster": "c", "user": "u"}},
        current="x",
    )
    assert call("-o", "name", environ={"KUBECONFIG": file})[0] == 1
    trusted = ("--certificate-authority", str(certificate.authority))
    assert call("-o", "name", *trusted, environ={"KUBECONFIG": file})[0] == 0
    assert call("-o", "name", "--insecure-skip-tls-verify", environ={"KUBECONFIG": file})[0] == 0


def test_a_cluster_and_a_user_are_taken_by_name_and_from_any_file(secure, call, certificate, away, tmp_path):
    # The path of the authority is relative to its file.
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "ca.crt").write_bytes(certificate.authority.read_bytes())
    more = write(folder / "config", clusters={"secure": {"server": secure.url, "certificate-authority": "ca.crt"}})
    environ = {"KUBECONFIG": f"{away}:{more}"}
    assert call("--cluster", "secure", "--user", "good", "-o", "name", environ=environ) == (0, "node/n1\n", "")
    code, _, err = call("--cluster", "none", environ=environ)
    assert (code, "has no cluster 'none'; it has away, secure" in err) == (2, True)
    code, _, err = call("--user", "none", environ=environ)
    assert (code, "has no user 'none'; it has failing, good" in err) == (2, True)


def test_a_user_and_groups_are_impersonated(server, call):
    add_node(server, "n1", gpus=1, mem=15)
    assert call("-o", "name", "--as", "jo", "--as-group", "dev", "--as-group=ops", "--as-uid", "7")[0] == 0
    # Of each request.
    assert server.impersonated[:3] == [
        ("Impersonate-User", ["jo"]),
        ("Impersonate-Uid", ["7"]),
        ("Impersonate-Group", ["dev", "ops"]),
    ]
    code, _, err = call("--as-group", "dev")
    assert (code, "without a user: name it with --as" in err) == (2, True)
    assert call("--as", "Jörg")[0] == 2


def test_a_kubeconfig_may_impersonate_and_a_flag_wins(server, call, tmp_path):
    add_node(server, "n1", gpus=1, mem=15)
    file = write(
        tmp_path / "config",
        clusters={"c": {"server": server.url}},
        users={"u": {"as": "jo", "as-groups": ["dev"]}},
        contexts={"x": {"cluster": "c", "user": "u"}},
        current="x",
    )
    assert call("-o", "name", environ={"KUBECONFIG": file})[0] == 0
    assert server.impersonated[:2] == [("Impersonate-User", ["jo"]), ("Impersonate-Group", ["dev"])]
    server.impersonated.clear()
    assert call("-o", "name", "--as", "al", environ={"KUBECONFIG": file})[0] == 0
    assert server.impersonated[:2] == [("Impersonate-User", ["al"]), ("Impersonate-Group", ["dev"])]


def test_a_pod_has_its_service_account_and_flags_that_need_a_kubeconfig_are_refused(call, tmp_path):
    environ = {"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "127.0.0.1"}
    code, _, err = call("--user", "jo", environ=environ)
    assert (code, "--user jo: a pod's service account has no users; give --kubeconfig" in err) == (2, True)
    code, _, err = call("--token", "x", environ=environ)
    assert (code, "give --server or --kubeconfig" in err) == (2, True)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 5),
        ("5s", 5),
        ("1m30s", 90),
        ("1.5h", 5400),
        ("200ms", 0.2),
        ("0", 86400),
        ("0s", 86400),
        ("99999h", 86400),
    ],
)
def test_a_request_timeout_is_read_as_kubectl_reads_it(text, seconds):
    assert request_timeout(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "-1", "5x", "s", "1m 30s", "\u0665"])
def test_a_request_timeout_that_kubectl_would_refuse(call, text):
    code, _, err = call(f"--request-timeout={text}")
    assert (code, "is not a number of seconds or a time such as 5s, 2m or 1h" in err) == (2, True)


def test_a_silent_api_server_is_given_up_after_the_request_timeout(server, call):
    server.held.add(("nodes", False))
    code, _, err = call("--request-timeout", "200ms")
    assert (code, "nothing came within 0.2 s" in err) == (1, True)


# -- as they are written ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (["n1", "-d", "n2"], ["-d", "--", "n1", "n2"]),
        (["n1", "-o", "json", "n2"], ["-o", "json", "--", "n1", "n2"]),
        (["-dwo", "json", "n2"], ["-dwo", "json", "--", "n2"]),
        (["-ojson", "n2"], ["-ojson", "--", "n2"]),
        (["--details=false", "--health=T"], ["--health"]),
        (["-d", "--", "-n"], ["-d", "--", "-n"]),
        (["--context=a", "--why", "p"], ["--context=a", "--why", "p"]),
        (["--unknown", "n1"], ["--unknown", "--", "n1"]),
        (["--request-timeout", "-1s"], ["--request-timeout=-1s"]),
        (["-dn", "-x"], ["-dn-x"]),
        (["-xd", "n"], ["-xd", "--", "n"]),
    ],
)
def test_flags_may_stand_anywhere_as_for_kubectl(given, taken):
    assert as_argparse_takes(given, ALL) == taken


@pytest.mark.parametrize("port", ["-5", "0", "65536", "99999999", "x", "\u0665", "80.5", ""])
@pytest.mark.parametrize("flag", ["--agent-port", "--scheduler-port"])
def test_a_port_is_a_number_that_tcp_has(call, flag, port):
    code, _, err = call(flag, port)
    assert (code, f"argument {flag}: {port!r} is not a port: a number from 1 to 65535" in err) == (2, True), err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--no-headers=foo"], "--no-headers=foo is neither true nor false: write --no-headers, --no-headers=true or"),
        (["--details="], "--details= is neither true nor false"),
        (["--request-timeout", "-1s"], "'-1s' is not a number of seconds or a time such as 5s, 2m or 1h"),
        (["-o"], "-o needs a value: -o FORMAT"),
        (["-dn"], "-dn needs a value: -dn NAME"),
        (["--why"], "--why needs a value: --why POD"),
        (["--completion"], "--completion needs a value: --completion SHELL"),
    ],
)
def test_a_value_that_is_wrong_or_missing_has_a_sentence(call, arguments, text):
    code, _, err = call(*arguments)
    assert (code, text in err) == (2, True), err


@pytest.mark.parametrize("flag", sorted(REFUSED))
def test_a_flag_of_kubectl_that_is_not_supported_names_the_alternative(call, flag):
    code, _, err = call(flag, "x")
    assert code == 2
    assert err == f"kubectl-inspect-cgpu: {flag} is a flag of kubectl that is not supported here: {REFUSED[flag]}\n"


@pytest.mark.parametrize("form", ["Json", "YAML", "Name", "WIDE"])
def test_an_output_format_may_be_in_any_case(server, call, form):
    add_node(server, "n1", gpus=1, mem=15)
    assert call("-o", form) == call("-o", form.lower())


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-o", "yamll"], "did you mean yaml?"),
        (["-o", "WIED"], "did you mean wide?"),
        (["--completion", "ZHS"], "did you mean zsh?"),
        (
            ["--sort-by", "FRE"],
            "--sort-by FRE is not a column here: name, mode, model, gpus, held, free, pods, waiting",
        ),
        (["--sort-by", "FRE"], "did you mean free?"),
        (["--health", "--sort-by", "held"], "--sort-by held is not a column here: node, mode, gpus, severity, problem"),
        (["--health", "--sort-by", "severty"], "did you mean severity?"),
        (
            ["--waste", "--sort-by", "mem"],
            "mem is not a column here: pod, namespace, node, held, used, peak, unused, idle",
        ),
        (["--waste", "--sort-by", "namspace"], "did you mean namespace?"),
        (
            ["--waste", "--sort-by", ".spec.nodeName"],
            ".spec.nodeName is a JSONPath expression, and this sorts by a column",
        ),
    ],
)
def test_a_mistyped_value_has_the_one_that_was_meant(call, words, text):
    code, out, err = call(*words)
    assert (code, out, text in err) == (2, "", True), err


@pytest.mark.parametrize("form", ["jsonpath={.x}", "custom-columns=A:.x", "go-template={{.}}"])
def test_an_output_format_of_kubectl_that_is_not_supported_names_the_alternative(call, form):
    code, _, err = call("-o", form)
    assert (code, "is not supported here: use -o json and jq" in err) == (2, True)
