"""Names as kubectl prints and takes them: `node/gpu-1`, `pod/chat`, `deployment.apps/chat`, or the bare name."""

from inspectcgpu.read.workload import KINDS, Workload
from inspectcgpu.usage_error import UsageError

OF_NODES = ("node", "nodes", "no")
OF_PODS = ("pod", "pods", "po")
_OF_CRON_JOBS = ("cronjob", "cronjobs", "cj", "cronjob.batch", "cronjobs.batch")
KIND_OF = {word: kind for kind in KINDS for word in kind.names()}
_EXAMPLES = "as in kubectl inspect cgpu --why chat, or --why deployment/chat"


def node_name(word: str) -> str:
    """The node's name. Raises UsageError if the word names no node."""
    kind, name = _parts(word)
    if kind and kind not in OF_NODES:
        raise UsageError(f"{word!r} is not the name of a node: write the name alone, or node/NAME")
    if not name:
        raise UsageError(f"{word!r} names no node: a node has a name, as in kubectl inspect cgpu gpu-1")
    return name


def pod_or_workload(word: str) -> str | Workload:
    """The pod's name, or the workload. Raises UsageError if the word names neither."""
    kind, name = _parts(word)
    if kind in _OF_CRON_JOBS:
        raise UsageError(
            f"{word!r} is a CronJob, whose Jobs make the pods: name one of those that kubectl get jobs shows, "
            "as in --why job/NAME"
        )
    if kind and kind not in OF_PODS and kind not in KIND_OF:
        raise UsageError(_unknown_kind(word, kind, name))
    if not name:
        raise UsageError(f"{word!r} names no pod: --why is about a pod or what makes pods, {_EXAMPLES}")
    return Workload(KIND_OF[kind], name) if kind in KIND_OF else name


def _unknown_kind(word: str, kind: str, name: str) -> str:
    kinds = ", ".join(known.kind.lower() for known in KINDS)
    sentence = (
        f"{word!r} has a kind that --why does not know: write the name of a pod, or KIND/NAME with one of "
        f"the kinds pod, {kinds}"
    )
    # Our own lists and alerts show pods as NAMESPACE/NAME.
    may_be_namespace = bool(name) and "/" not in kind
    return (
        f"{sentence}; for pod {name} of namespace {kind}, write --why {name} -n {kind}"
        if may_be_namespace
        else sentence
    )


def _parts(word: str) -> tuple[str, str]:
    """The kind before the slash, in lower case, and the name; the kind is empty without a slash."""
    kind, slash, name = word.rpartition("/")
    # A slash with nothing before it stands for a kind, too, which no command knows.
    return (kind.lower() or slash), name.strip()
