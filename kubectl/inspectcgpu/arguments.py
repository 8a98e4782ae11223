"""Arguments as kubectl takes them: flags before, between and after names, and `--flag=true`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from inspectcgpu.flags import Flag
from inspectcgpu.usage_error import UsageError

_TRUE = ("1", "t", "T", "true", "TRUE", "True")
_FALSE = ("0", "f", "F", "false", "FALSE", "False")
"""As Go's strconv.ParseBool reads them."""
_NO_LOGS = "because nothing is logged or profiled"
REFUSED: Mapping[str, str] = {
    "-f": "name the nodes, or select them with -l",
    "--filename": "name the nodes, or select them with -l",
    "-R": "name the nodes, or select them with -l",
    "--recursive": "name the nodes, or select them with -l",
    "-k": "name the nodes, or select them with -l",
    "--kustomize": "name the nodes, or select them with -l",
    "--raw": "use kubectl get --raw",
    "--subresource": "use kubectl get nodes --subresource",
    "--server-print": "use kubectl get nodes --server-print",
    "--show-kind": "use -o name, which prints node/NAME",
    "--show-managed-fields": "use kubectl get nodes --show-managed-fields",
    "--output-watch-events": "use --watch -o json, which prints the whole report at each change",
    "--allow-missing-template-keys": "use -o json and jq",
    "--field-selector": "name the nodes, or select them by label with -l",
    "-L": "use kubectl get nodes -L",
    "--label-columns": "use kubectl get nodes --label-columns",
    "--show-labels": "use kubectl get nodes --show-labels",
    "--template": "use -o json and jq",
    "--username": "Kubernetes 1.19 removed passwords: use --token or a kubeconfig",
    "--password": "Kubernetes 1.19 removed passwords: use --token or a kubeconfig",
    "--ignore-not-found": "select the node by label with -l, which may match none",
    "--watch-only": "use --watch",
    "--chunk-size": "leave it out, because lists are read in pages of 500",
    "--cache-dir": "leave it out, because nothing of the cluster is cached",
    "--disable-compression": "leave it out, because only large answers are compressed",
    "--kuberc": "leave it out, because no file with defaults is read",
    "--match-server-version": "leave it out, because every version from 1.18 on is read",
    "--warnings-as-errors": "leave it out, because warnings of the API server are not shown",
    "--profile": f"leave it out, {_NO_LOGS}",
    "--profile-output": f"leave it out, {_NO_LOGS}",
    "--log-flush-frequency": f"leave it out, {_NO_LOGS}",
    "--vmodule": f"leave it out, {_NO_LOGS}",
    "-v": "leave it out, because there are no levels of logs; kubectl -v=6 get nodes shows requests",
    "--v": "leave it out, because there are no levels of logs; kubectl --v=6 get nodes shows requests",
}
"""Flags of kubectl that mean nothing here, each with what to do instead."""


def as_argparse_takes(arguments: Sequence[str], flags: Iterable[Flag]) -> list[str]:
    """The same arguments, flags first. Raises UsageError for a flag of kubectl that is not supported."""
    flag_of = {name: flag for flag in flags for name in flag.names}
    words: list[str] = []
    names: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--":
            names += remaining
        elif argument.startswith("--"):
            words += _long(argument, remaining, flag_of)
        elif argument.startswith("-") and argument != "-":
            words += _short(argument, remaining, flag_of)
        else:
            names.append(argument)
    return [*words, "--", *names] if names else words


def _long(argument: str, remaining: Iterator[str], flag_of: Mapping[str, Flag]) -> list[str]:
    """`--flag`, `--flag=value`, or `--flag value`."""
    name, has_value, value = argument.partition("=")
    _refuse(name)
    flag = flag_of.get(name)
    if flag is None:
        return [argument]
    if flag.takes_value:
        return [argument] if has_value else _with_value(argument, flag, remaining)
    if not has_value:
        return [argument]
    if value in _FALSE:
        return []
    if value in _TRUE:
        return [name]
    raise UsageError(f"{argument} is neither true nor false: write {name}, {name}=true or {name}=false")


def _short(argument: str, remaining: Iterator[str], flag_of: Mapping[str, Flag]) -> list[str]:
    """`-d`, `-dw`, `-ojson`, `-o json`, or `-dwo json`."""
    for position, letter in enumerate(argument[1:], 1):
        name = f"-{letter}"
        _refuse(name)
        flag = flag_of.get(name)
        if flag is None:
            break
        if flag.takes_value:
            is_last = position == len(argument) - 1
            return _with_value(argument, flag, remaining) if is_last else [argument]
    return [argument]


def _with_value(argument: str, flag: Flag, remaining: Iterator[str]) -> list[str]:
    """The flag and the next word, which is its value. Raises UsageError at the end of the line."""
    value = next(remaining, None)
    if value is None:
        metavar = flag.how.get("metavar", "VALUE")
        raise UsageError(f"{argument} needs a value: {argument} {metavar}")
    if not value.startswith("-"):
        return [argument, value]
    # argparse takes a word with a dash for a flag, unless it is in one word with the flag before it. For kubectl it is
    # the value.
    return [f"{argument}={value}"] if argument.startswith("--") else [f"{argument}{value}"]


def _refuse(name: str) -> None:
    if name in REFUSED:
        raise UsageError(f"{name} is a flag of kubectl that is not supported here: {REFUSED[name]}")
