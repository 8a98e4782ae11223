"""Posts this node and its pods as the API server has them; each has a watch of its own."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from gpuagent.domain.events import ApiUnavailable, NodeSeen, PodsSeen
from gpuagent.domain.pods.holdings import lists_ended
from gpuagent.domain.pods.json_values import text
from gpuagent.domain.pods.parse_pod import kept, parse_pod
from gpuagent.domain.pods.pod import Pod, PodName
from gpuagent.kube.api.api_errors import KubeError
from gpuagent.kube.api.client import Api
from gpuagent.kube.watch.follow import Follow
from gpuagent.kube.watch.trim import trim_node
from gpuagent.system.backoff import Backoff

log = logging.getLogger(__name__)

MOST_DELETED = 1000
"""How many UIDs of deleted pods are stored, so that a pod that was read meanwhile does not come back."""
MOST_EARLIER = 20
"""How many states are posted for one burst, besides the last: a tenant in a loop must not keep the agent busy."""
_NOT_ENDED = "status.phase!=Succeeded,status.phase!=Failed"
NODE_S = 1.0
"""How long the first list of pods waits for the Node, whose kubelet's version decides which pods are listed."""

Post = Callable[[NodeSeen | PodsSeen | ApiUnavailable], None]
Json = dict[str, Any]


class Watcher:
    """Posts NodeSeen, PodsSeen and ApiUnavailable about ``node_name`` from daemon threads.

    NodeSeen comes with every change of the Node; PodsSeen with changes of its pods, the first at once and then those of
    ``burst_s`` seconds together. ApiUnavailable is posted once per distinct reason until that watch has recovered,
    which the next NodeSeen or PodsSeen shows. The two watches fail and recover independently; each reason says which.

    Args:
        client: shared with others; its first use, in these threads, loads urllib3.
        node_name: as kubelet registered it.
        post: takes one event, from any thread, and must not block.
        resources: those whose amounts in pods are of interest.
        clock: monotonic seconds for ``at``.
        burst_s: changes of pods within this time are posted together.
        backoff: makes the delays of one watch.

    Attributes:
        pods: of the node, as the watch has shown them.
        threads: they run from `start` to `stop`.
    """

    def __init__(  # noqa: PLR0913 - the last three are for tests
        self,
        client: Api,
        node_name: str,
        post: Post,
        *,
        resources: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
        burst_s: float = 0.05,
        backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        self._client = client
        self._node_name = node_name
        self._node = _Node(node_name, post, clock)
        self.pods = NodePods(node_name, post, clock, burst_s, resources)
        pods = f"spec.nodeName={node_name}"
        self._follows: tuple[Follow[Any], ...] = (
            Follow(client, "/api/v1/nodes", f"metadata.name={node_name}", self._node, backoff(), clock),
            Follow(client, "/api/v1/pods", pods, self.pods, backoff(), clock, self._unlisted),
        )
        self.threads = (
            threading.Thread(target=self._follows[0].run, name="kube-node", daemon=True),
            threading.Thread(target=self._follows[1].run, name="kube-pods", daemon=True),
            threading.Thread(target=self.pods.run, name="kube-pods-post", daemon=True),
        )

    def _unlisted(self) -> str:
        """Selector terms that leave out pods that ended before the list; a pod that ends later is followed."""
        self._node.answered.wait(NODE_S)
        if lists_ended(self._node.kubelet):
            return ""
        return _NOT_ENDED

    def start(self) -> None:
        """Start watching; returns at once."""
        for thread in self.threads:
            thread.start()

    def fetch(self, pods: Collection[PodName] | None) -> frozenset[str] | None:
        """Read pods that the watch has not shown; None: all of the node that have not ended.

        Returns the UIDs of those there are, None if the API server did not answer.
        """
        node = f"spec.nodeName={self._node_name}"
        if pods is None:
            queries = [("/api/v1/pods", f"{node},{_NOT_ENDED}")]
        else:
            queries = []
            for pod in pods:
                path = f"/api/v1/namespaces/{pod.namespace}/pods"
                queries.append((path, f"metadata.name={pod.name},{node}"))
        uids = set[str]()
        for path, selector in queries:
            try:
                uids |= self._fetch(path, selector, complete=pods is None)
            except (KubeError, ValueError) as err:
                log.warning("Failed to read pods", extra={"path": path, "selector": selector, "error": str(err)})
                return None
        return frozenset(uids)

    def _fetch(self, path: str, selector: str, *, complete: bool) -> set[str]:
        """Read pods until no list of the watch came meanwhile. Raises KubeError, ValueError."""
        while True:
            lists = self.pods.lists
            _, items = self._client.page(path, {"fieldSelector": selector})
            pods = [self.pods.read(item) for item in items]
            uids = self.pods.fetched(pods, lists, complete=complete)
            if uids is not None:
                return uids

    def stop(self, timeout_s: float = 2.0) -> None:
        """Stop and wait up to ``timeout_s``; a thread in a call to a silent server ends with that call's timeout."""
        for follow in self._follows:
            follow.stop()
        # The thread that lists the pods may still wait for the Node.
        self._node.answered.set()
        self.pods.stop()
        deadline = time.monotonic() + timeout_s
        for thread in self.threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))


class _Node:
    """Posts the Node.

    Attributes:
        kubelet: version of its kubelet; "" while it is not known.
        answered: set once the Node was read, or could not be read.
    """

    def __init__(self, name: str, post: Post, clock: Callable[[], float]) -> None:
        self._name = name
        self._post = post
        self._clock = clock
        self.kubelet = ""
        self.answered = threading.Event()

    def read(self, json: Json) -> Json:
        node = trim_node(json)
        self.kubelet = text(node["status"]["nodeInfo"].get("kubeletVersion"))
        return node

    def listed(self, items: Sequence[Json]) -> None:
        self.answered.set()
        if items:
            self._post(NodeSeen(items[0], self._clock()))
        else:
            self._missing()

    def changed(self, kind: str, item: Json) -> None:
        if kind == "DELETED":
            self._missing()
        else:
            self._post(NodeSeen(item, self._clock()))

    def failed(self, reason: str) -> None:
        self.answered.set()
        self._post(ApiUnavailable(f"watching node {self._name}: {reason}", self._clock()))

    def _missing(self) -> None:
        text = f"node {self._name} does not exist at the API server; check --node-name"
        self._post(ApiUnavailable(text, self._clock()))


class NodePods:
    """The pods by uid, in the order in which kubelet receives them.

    A thread of its own posts them, so that the last change of a burst is always posted. So is each pod as the watch
    first showed it: kubelet may admit it although it was deleted at once, and a scheduler's decision is what the pod
    said then.

    Attributes:
        known: the pods now.
        lists: how many lists were taken.
        complete: every pod of the node was read at least once.
        followed: the list was taken, and nothing has failed since.
    """

    def __init__(
        self,
        node_name: str,
        post: Post,
        clock: Callable[[], float],
        burst_s: float,
        resources: Collection[str] = (),
    ) -> None:
        self._node_name = node_name
        self._post = post
        self._clock = clock
        self._burst_s = burst_s
        self._resources = frozenset(resources)
        self._stopped = threading.Event()
        self._updated = threading.Event()
        self._lock = threading.Lock()
        self.known: dict[str, Pod] = {}
        self._changed = False
        self._unposted = set[str]()
        """UIDs of the pods that are in `known` and in no PodsSeen yet."""
        self._earlier: list[PodsSeen] = []
        """States to post before the current one: they have pods that it does not have."""
        self._failures: list[str] = []
        self._deleted: deque[str] = deque(maxlen=MOST_DELETED)
        self._read_alone = set[str]()
        self._listed_together = set[str]()
        self.lists = 0
        self.complete = False
        self.followed = False

    def read(self, json: Json) -> Pod:
        pod = kept(parse_pod(json), self._resources)
        if not pod.uid:
            raise ValueError("it has no uid")
        return pod

    def listed(self, items: Sequence[Pod]) -> None:
        # Kubelet takes the pods of a list by age, and those of a watch as they come: in the order of their versions.
        listed = {pod.uid: pod for pod in sorted(items, key=_age)}
        with self._lock:
            self._keep_all_former(listed)
            # Pods that were known keep their place, and those that are new come after them.
            pods = {}
            for uid, known in self.known.items():
                if uid in listed and uid not in self._read_alone:
                    pods[uid] = _same(known, listed.pop(uid))
            self.known = pods | listed
            self._read_alone.clear()
            self._listed_together &= self.known.keys()
            self._unposted |= listed.keys()
            if len(listed) > 1:
                self._listed_together |= listed.keys()
            self._changed = True
            self.lists += 1
            self.complete = True
            self.followed = True
        self._updated.set()

    def changed(self, kind: str, item: Pod) -> None:
        is_deleted = kind == "DELETED"
        with self._lock:
            self._keep_former(item.uid, None if is_deleted else item)
            if is_deleted:
                self._forget(item.uid)
                self._deleted.append(item.uid)
            else:
                if item.uid in self._read_alone:
                    # The watch shows it only now, so it comes after all that the watch has shown.
                    self._forget(item.uid)
                if item.uid not in self.known:
                    self._unposted.add(item.uid)
                self.known[item.uid] = item
            self._changed = True
        self._updated.set()

    def _keep_all_former(self, listed: Mapping[str, Pod]) -> None:
        """As `_keep_former`, before a list takes the place of all pods that are known."""
        for uid in tuple(self._unposted):
            self._keep_former(uid, listed.get(uid))

    def _keep_former(self, uid: str, changed: Pod | None) -> None:
        """Have the current state posted too, if nothing else would show this pod as it is.

        Args:
            uid: of the pod.
            changed: what the pod is to be from now on; None if it was deleted.
        """
        if uid not in self._unposted:
            return
        former = self.known[uid]
        if changed is not None and _looks_alike(former, changed):
            return
        if len(self._earlier) < MOST_EARLIER:
            self._earlier.append(self.seen())
            # With it, all pods that are known are posted.
            self._unposted.clear()

    def fetched(self, items: Sequence[Pod], lists: int, *, complete: bool = False) -> set[str] | None:
        """Add pods that the watch has not shown; return the UIDs of those whose deletion it has not shown either.

        `complete`: these are all pods of the node that have not ended.

        None if `lists` is outdated, because the pods were listed since. The watch from there on shows no earlier
        deletion, so these pods must be read again.
        """
        with self._lock:
            if lists != self.lists:
                return None
            uids = set[str]()
            for pod in sorted(items, key=_age):
                if pod.uid in self._deleted:
                    continue
                uids.add(pod.uid)
                if pod.uid not in self.known:
                    self.known[pod.uid] = pod
                    self._unposted.add(pod.uid)
                    self._read_alone.add(pod.uid)
                    self._changed = True
            if complete and not self.complete:
                self.complete = True
                self._changed = True
        # Even without a new pod: whether the list is complete may have changed.
        self._updated.set()
        return uids

    def _forget(self, uid: str) -> None:
        self.known.pop(uid, None)
        self._unposted.discard(uid)
        self._read_alone.discard(uid)
        self._listed_together.discard(uid)

    def seen(self) -> PodsSeen:
        """The pods now, in the order in which kubelet got them, as far as that is known: those read alone last."""
        shown = [pod for uid, pod in self.known.items() if uid not in self._read_alone]
        read_alone = [pod for uid, pod in self.known.items() if uid in self._read_alone]
        return PodsSeen(
            pods=(*shown, *read_alone),
            at=self._clock(),
            complete=self.complete,
            followed=self.followed,
            unordered=frozenset(self._listed_together | self._read_alone),
        )

    def failed(self, reason: str) -> None:
        # By the same thread as the pods, so that a failure never overtakes what was seen before it.
        with self._lock:
            self.followed = False
            self._failures.append(f"watching pods of node {self._node_name}: {reason}")
        self._updated.set()

    def take(self) -> list[PodsSeen | ApiUnavailable]:
        """What happened since the last call: the states of the pods in their order, then failures."""
        with self._lock:
            events: list[PodsSeen | ApiUnavailable] = [*self._earlier]
            if self._changed:
                events.append(self.seen())
            events += [ApiUnavailable(failure, self._clock(), "pods") for failure in self._failures]
            self._earlier = []
            self._unposted.clear()
            self._changed = False
            self._failures = []
        return events

    def run(self) -> None:
        while self._updated.wait() and not self._stopped.is_set():
            self._updated.clear()
            for event in self.take():
                self._post(event)
            # What comes during the pause is posted together.
            self._stopped.wait(self._burst_s)

    def stop(self) -> None:
        self._stopped.set()
        self._updated.set()


def _same(known: Pod, listed: Pod) -> Pod:
    """The former object of an unchanged pod: its identity shows other code that nothing changed."""
    is_unchanged = known.version and known.version == listed.version
    return known if is_unchanged else listed


def _looks_alike(former: Pod, changed: Pod) -> bool:
    """Whether both say the same of what counts at first sight: decisions, and that kubelet may still admit the pod."""
    if former.ended is not changed.ended:
        return False
    return former.annotations == changed.annotations and former.labels == changed.labels


def _age(pod: Pod) -> tuple[str, int]:
    """The pod's creation time in seconds, and its version, which etcd counts up."""
    version = int(pod.version) if pod.version.isdecimal() else 0
    return pod.created, version
