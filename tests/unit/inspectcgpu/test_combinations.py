"""Commands and flags: each flag changes what a command shows, or is refused in one sentence. None is ignored."""

import http.server
import itertools
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from inspectcgpu.arguments import as_argparse_takes
from inspectcgpu.combinations import COMMANDS, NAMES_OF_NODES, NODES, check
from inspectcgpu.flags import AGENTS, ALL, OUTPUTS, SHOWN, STATUS, make_parser
from inspectcgpu.usage_error import UsageError
from tests.unit.inspectcgpu.sample_cluster import add_node
from tests.unit.inspectcgpu.sample_cluster import add_pod as add_gpu_pod
from tests.unit.inspectcgpu.test_status import PAGE, add_pod

WORDS = {
    NODES: [],
    "--details": ["-d"],
    "--health": ["--health"],
    "--waste": ["--waste"],
    "--defragment": ["--defragment"],
    "--why": ["--why", "chat"],
    STATUS: ["status", "n1"],
}
"""The command line of each command."""
GIVEN = {
    NAMES_OF_NODES: ["n2"],
    "--details": ["-d"],
    "--health": ["--health"],
    "--defragment": ["--defragment"],
    "--waste": ["--waste"],
    "--why": ["--why", "chat"],
    "--selector": ["-l", "zone=b"],
    "--namespace": ["-n", "team-b"],
    "--all-namespaces": ["-A"],
    "--sort-by": ["--sort-by", "held"],
    "--no-headers": ["--no-headers"],
    "--watch": ["-w"],
    "--interval": ["--interval", "7"],
    "--agent-namespace": ["--agent-namespace", "gpu"],
    "--agent-port": ["--agent-port", "1"],
    "--agent-timeout": ["--agent-timeout", "7"],
    "--scheduler-port": ["--scheduler-port", "1"],
    "--no-agents": ["--no-agents"],
}
"""Each flag with a value other than its default."""
SORTED = {"--health": ["--sort-by", "mode"], "--waste": ["--sort-by", "held"]}
"""Commands with other columns."""
TESTED_ELSEWHERE = {"--watch", "--interval", "--agent-timeout", "--scheduler-port"}
"""Flags about time, about which tests with a process or a server of their own are."""
OTHER_COMMANDS = {"--details", "--health", "--defragment", "--waste", "--why"}


def refusal(words: list[str]) -> str:
    """The sentence that refuses a command line; empty if it is taken."""
    try:
        check(make_parser().parse_args(as_argparse_takes(words, ALL)))
    except UsageError as err:
        return str(err)
    return ""


def test_the_product_has_every_command_and_every_flag() -> None:
    assert set(WORDS) == set(COMMANDS)
    assert set(GIVEN) == {NAMES_OF_NODES} | {flag.names[-1] for flag in (*SHOWN, *AGENTS)} - {"--output"}


@pytest.mark.parametrize(("command", "flag"), list(itertools.product(WORDS, GIVEN)))
def test_a_flag_is_taken_or_refused_by_its_name(command: str, flag: str) -> None:
    if command == NODES and flag in OTHER_COMMANDS:
        return  # the flag makes it the other command
    if command == STATUS and flag == NAMES_OF_NODES:
        assert "status is about one node" in refusal([*WORDS[STATUS], *GIVEN[flag]])
        return
    is_of_watch = flag == "--interval" and "--watch" in COMMANDS[command].flags
    sentence = refusal([*WORDS[command], *GIVEN[flag], *(["-w"] if is_of_watch else [])])
    if flag in COMMANDS[command].flags:
        assert sentence == ""
        return
    # Of two commands, one is refused as a flag of the other.
    named = (flag, command) if flag in OTHER_COMMANDS else (flag,)
    assert any(sentence.endswith(f"leave out {name}") for name in named), sentence


@pytest.mark.parametrize(("command", "output"), list(itertools.product(WORDS, OUTPUTS)))
def test_an_output_format_is_taken_or_refused_by_its_name(command: str, output: str) -> None:
    sentence = refusal([*WORDS[command], "-o", output])
    expected = f"leave out -o {output}, or use -o json"
    assert sentence == "" if output in COMMANDS[command].outputs else expected in sentence


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--interval", "7"], "add --watch, or leave out --interval"),
        (["--no-agents", "--agent-port", "7"], "--no-agents asks no agent: leave out --agent-port"),
        (["-o", "json", "--no-headers"], "leave out --no-headers"),
        (["-o", "name", "-n", "x"], "leave out --namespace"),
        (["--waste", "-o", "wide"], "leave out -o wide"),
        (["status", "n1", "-A"], "leave out --all-namespaces"),
        (["--why", "chat", "--health"], "leave out --health"),
        (["--defragment", "n1"], "leave out the names of nodes"),
    ],
)
def test_what_does_not_go_together_says_what_to_do(words: list[str], text: str) -> None:
    assert text in refusal(words)


# -- what a flag changes ----------------------------------------------------------------------------------------


def use(namespace: str, pod: str, *, used_gib: int = 1) -> dict[str, Any]:
    return {
        "namespace": namespace,
        "pod": pod,
        "uuid": "GPU-1",
        "container": "main",
        "held_bytes": (7 + used_gib) << 30,
        "used_p95_bytes": used_gib << 30,
        "used_peak_bytes": used_gib << 30,
        "idle_s": 90,
    }


@pytest.fixture
def port(server: Any) -> Iterator[str]:
    """Port of an agent on n1, in a cluster in which every flag has something to change."""
    page = json.dumps({**PAGE, "usage": [use("default", "chat"), use("team-b", "rank", used_gib=2)]}).encode()

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    add_node(server, "n1", gpus=1, mem=15, labels={"zone": "a"})
    add_node(server, "n2", "cgpu", gpus=1, mem=15, labels={"zone": "b"})
    add_pod(server)
    add_gpu_pod(server, "chat", "n1", 3)
    add_gpu_pod(server, "rank", "n2", 9, 0, namespace="team-b")
    pages = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=pages.serve_forever, args=(0.01,))
    thread.start()
    yield str(pages.server_address[1])
    pages.shutdown()
    thread.join()
    pages.server_close()


TAKEN = [
    (command, flag)
    for command, takes in COMMANDS.items()
    for flag in takes.flags
    if flag not in {command, *TESTED_ELSEWHERE} and (command, flag) != (STATUS, NAMES_OF_NODES)
]


@pytest.mark.parametrize(("command", "flag"), TAKEN)
def test_a_flag_that_is_taken_changes_the_answer(call: Any, port: str, command: str, flag: str) -> None:
    words = [*WORDS[command]]
    if flag == "--all-namespaces":
        words += ["-n", "team-b"]
    asked = ["--agent-port", port] if "--agent-port" in COMMANDS[command].flags else []
    given = SORTED.get(command, GIVEN[flag]) if flag == "--sort-by" else GIVEN[flag]
    without_flag = call(*words, *asked)
    # The last port counts. Without agents, no port is taken.
    with_flag = call(*words, *([] if flag == "--no-agents" else asked), *given)
    assert 2 not in (without_flag[0], with_flag[0])
    assert with_flag != without_flag
