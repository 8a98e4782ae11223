"""Names as kubectl prints and takes them: `node/gpu-1`, `pod/chat`, or the bare name."""

from inspectcgpu.usage_error import UsageError

_OF_NODES = ("node", "nodes", "no")
_OF_PODS = ("pod", "pods", "po")


def node_name(word: str) -> str:
    """The node's name. Raises UsageError if the word names no node."""
    return _name(word, "node", _OF_NODES, "a node has a name, as in kubectl inspect cgpu gpu-1")


def pod_name(word: str) -> str:
    """The pod's name. Raises UsageError if the word names no pod."""
    return _name(word, "pod", _OF_PODS, "--why is about one pod, as in kubectl inspect cgpu --why chat")


def _name(word: str, kind: str, kinds: tuple[str, ...], example: str) -> str:
    given_kind, slash, name = word.rpartition("/")
    if slash and given_kind not in kinds:
        raise UsageError(f"{word!r} is not the name of a {kind}: write the name alone, or {kind}/NAME")
    if not name.strip():
        raise UsageError(f"{word!r} names no {kind}: {example}")
    return name
