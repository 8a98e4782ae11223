"""`__complete`: what may follow on the command line, for kubectl's completion of plugins.

kubectl runs `kubectl_complete-inspect-cgpu` with the words after `kubectl inspect cgpu`, of which it wants the last one
completed. It reads a candidate a line, with a description after a tab, and at the end ``:`` and a number for the shell.
Source: ShellCompDirective of github.com/spf13/cobra, and pkg/cmd/plugin/plugin_completion.go of kubectl.
"""

import argparse
import contextlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from gpuagent.domain.pods.json_values import mapping, text
from gpuagent.domain.sharing.mode import MODE_LABEL
from gpuagent.kube.api.api_errors import ApiConfigError, KubeError
from gpuagent.kube.api.client import METADATA_ONLY, Client
from gpuagent.system.printable import printable
from inspectcgpu.arguments import as_argparse_takes
from inspectcgpu.combinations import COMMANDS, command_of
from inspectcgpu.fetch.choose_cluster import connect, named, own_namespace
from inspectcgpu.flags import ALL, STATUS, Flag, make_parser, overrides_of
from inspectcgpu.names import KIND_OF, OF_NODES, OF_PODS, node_name
from inspectcgpu.read.workload import KINDS
from inspectcgpu.usage_error import UsageError

FILES = 0
"""For the shell: complete names of files."""
NO_SPACE = 2
"""For the shell: the word goes on after the candidate."""
NO_FILES = 4
"""For the shell: there is nothing else."""
LONGEST_S = 3.0
"""A user waits for the answer, so a slow API server is not waited for."""
MOST_PAGES = 10
"""Pages of names, of 500 each, that are read."""
_OF_FILES = ("--kubeconfig", "--certificate-authority", "--client-certificate", "--client-key")
_OF_KUBECONFIG = {"--context": "contexts", "--cluster": "clusters", "--user": "users"}


def complete(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Print what may stand for the last of `words`. Never fails: without an answer there are no candidates."""
    *before, word = words or [""]
    directive = NO_FILES
    candidates: list[str] = []
    flag, before, start = _awaited(before, word)
    try:
        if flag and set(flag.names) & set(_OF_FILES):
            directive = FILES
        elif flag:
            # What is known before a read fails is kept.
            candidates.extend(_values(flag, _options(before), environ, start))
        elif word.startswith("-"):
            candidates.extend(_flags())
        else:
            candidates.extend(_names(_options(before), environ, start))
    except (UsageError, ApiConfigError, KubeError):
        pass
    possible = sorted(candidate for candidate in candidates if candidate.startswith(start))
    for candidate in possible:
        name, tab, help_text = candidate.partition("\t")
        print(f"{printable(name)}{tab}{printable(help_text)}")
    if possible and all(candidate.endswith("/") for candidate in possible):
        # A name follows the slash.
        directive |= NO_SPACE
    print(f":{directive}")
    return 0


def _awaited(before: list[str], word: str) -> tuple[Flag | None, list[str], str]:
    """The flag whose value is to be completed, the words before it, and the start of what is completed."""
    flag_of = {name: flag for flag in ALL for name in flag.names if flag.takes_value}
    name, has_value, value = word.partition("=")
    if has_value and name in flag_of:
        return flag_of[name], before, value
    if before and before[-1] in flag_of:
        return flag_of[before[-1]], before[:-1], word
    return None, before, word


def _options(words: Sequence[str]) -> argparse.Namespace:
    """The words as flags. Raises UsageError if they are none: the user is still writing them."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            options: argparse.Namespace = make_parser().parse_args(as_argparse_takes(words, ALL))
        except SystemExit as err:
            raise UsageError("the line is not complete") from err
    return options


def _flags() -> Iterator[str]:
    for flag in ALL:
        yield f"{flag.names[-1]}\t{flag.help}"


def _names(options: argparse.Namespace, environ: Mapping[str, str], start: str) -> Iterator[str]:
    """Nodes that are not named yet, with a kind, such as ``node/``, if one is written; and the command."""
    given = options.nodes
    is_full = given[:1] == [STATUS] and len(given) > 1
    if is_full or options.why or options.defragment:
        return
    if not given:
        yield f"{STATUS}\twhat the agent of one node does"
    kind, slash, _ = start.rpartition("/")
    if slash and kind.lower() not in OF_NODES:
        return
    client = _client(options, environ)
    nodes = _names_of(client, "/api/v1/nodes", {"labelSelector": MODE_LABEL})
    named = {node_name(word) for word in given}
    yield from (f"{kind}{slash}{name}" for name in nodes if name not in named)


def _values(flag: Flag, options: argparse.Namespace, environ: Mapping[str, str], start: str) -> Iterable[str]:
    name = flag.names[-1]
    takes = COMMANDS[command_of(options)]
    choices: Sequence[str] = flag.how.get("choices", ())
    known = {"--output": takes.outputs, "--sort-by": takes.columns}.get(name, choices)
    if known:
        return known
    if name in _OF_KUBECONFIG:
        return named(options.kubeconfig, _OF_KUBECONFIG[name], environ)
    if name in ("--namespace", "--agent-namespace"):
        return _names_of(_client(options, environ), "/api/v1/namespaces", {})
    if name == "--why":
        return _pods_and_workloads(options, environ, start)
    return ()


def _pods_and_workloads(options: argparse.Namespace, environ: Mapping[str, str], start: str) -> Iterator[str]:
    """As kubectl logs: pods, here those that wait, and kinds; after the slash of a kind, its objects."""
    client = _client(options, environ)
    namespace = options.namespace or own_namespace(options.kubeconfig, options.context, environ)
    written, slash, _ = start.rpartition("/")
    word = written.lower()
    kind = KIND_OF.get(word)
    if kind:
        folder = kind.folder(namespace)
        selector = {}
    elif not slash or word in OF_PODS:
        folder = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"
        selector = {"fieldSelector": "status.phase=Pending"}
    else:
        return
    if not slash:
        # Before the pods, so that they are kept if these cannot be read.
        for known in KINDS:
            yield f"{known.kind.lower()}/"
    for name in _names_of(client, folder, selector):
        yield f"{written}{slash}{name}"


def _client(options: argparse.Namespace, environ: Mapping[str, str]) -> Client:
    timeout_s = min(options.request_timeout or LONGEST_S, LONGEST_S)
    return connect(options.kubeconfig, overrides_of(options), environ, timeout_s)


def _names_of(client: Client, path: str, selector: Mapping[str, str]) -> list[str]:
    """Names of the objects of a collection, whose other fields are not sent."""
    names: list[str] = []
    query: dict[str, Any] = {**selector, "limit": 500}
    for _ in range(MOST_PAGES):
        metadata, items = client.page(path, query, accept=METADATA_ONLY)
        names += [text(mapping(item.get("metadata")).get("name")) for item in items]
        token = metadata.get("continue")
        if not token:
            break
        query["continue"] = str(token)
    return names
