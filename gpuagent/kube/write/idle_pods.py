"""Reports or evicts pods whose GPUs are idle, as the label of their namespace says."""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpuagent.domain.announcement import Announcement, EventSink
from gpuagent.domain.pods.json_values import mapping, mappings, text
from gpuagent.domain.usage.idle_policy import LEAST_S, WHEN_IDLE_LABEL, IdlePod, IdlePolicy, parse_policy
from gpuagent.domain.usage.over_time import MOST_GAP_S
from gpuagent.kube.api.api_errors import ApiError, KubeError
from gpuagent.kube.api.client import Api
from gpuagent.kube.write.keyed_reconciler import Delays, KeyedReconciler, Outcome
from gpuagent.system.printable import first_of

log = logging.getLogger(__name__)

RECHECK_S = 60.0
"""How often each idle pod is looked at, and its namespace read."""
MOST_NAMED = 3
"""Namespaces that one problem names: who may label namespaces could label many."""
_FIELDS = frozenset({"metadata", "labels", WHEN_IDLE_LABEL})
_EVICTION = "pods/eviction"
_GONE = (404, 409)
_BUDGET = 429


@dataclass(frozen=True, slots=True)
class _Read:
    """The policy of a namespace.

    Attributes:
        policy: None if nothing is to be done.
        mistake: the value of the label if it is not a policy.
        at: when it was read, in monotonic seconds.
    """

    policy: IdlePolicy | None
    mistake: str
    at: float


class IdlePods(KeyedReconciler[IdlePod]):
    """Carries out the policy of each idle pod's namespace.

    Args:
        client: shared with others.
        announce: sends an Event to the pod.
        on_mistake: receives which namespaces of idle pods have a label that is not a policy, once for each text, and
            None when none has one.
    """

    def __init__(
        self, client: Api, announce: EventSink, on_mistake: Callable[[str | None], None] = lambda _: None
    ) -> None:
        super().__init__("kube-idle", Delays(recheck_s=RECHECK_S))
        self._client = client
        self._announce = announce
        self._on_mistake = on_mistake
        self._mistake: str | None = None
        self._policies: dict[str, _Read] = {}
        self._sent: dict[str, Announcement] = {}
        """UID of each idle pod to its last Event."""
        self._desired_at = float("-inf")
        self._version = ""

    def key(self, value: IdlePod) -> str:
        return value.uid

    def desire(self, values: Iterable[IdlePod]) -> None:
        """As every reconciler; it has to be called again and again, as idleness that is not confirmed ends."""
        idle_pods = list(values)
        self._desired_at = time.monotonic()
        self._forget_events_of_others(idle_pods)
        namespaces = {pod.name.namespace for pod in idle_pods}
        self._report_mistakes(namespaces)
        super().desire(idle_pods)

    def attempt(self, value: IdlePod) -> Outcome:
        now = time.monotonic()
        # The readings have stopped: the pod may work by now.
        if now - self._desired_at > MOST_GAP_S:
            return Outcome.DONE
        policy = self._policy(value.name.namespace, now)
        if policy is None or now - value.since < policy.after_s:
            return Outcome.DONE
        if policy.action == "report" or value.is_static:
            self._tell(value, policy)
        else:
            self._evict(value, policy)
        return Outcome.DONE

    def describe(self, value: IdlePod, err: KubeError) -> str:
        return f"what namespace {value.name.namespace} wants done about its idle pods cannot be read: {err}"

    def _forget_events_of_others(self, idle_pods: Iterable[IdlePod]) -> None:
        """Keep the last Events of these pods only. A pod that is idle again later gets its Event again."""
        uids = {pod.uid for pod in idle_pods}
        self._sent = {uid: announcement for uid, announcement in self._sent.items() if uid in uids}

    def _report_mistakes(self, namespaces: set[str]) -> None:
        """Only the thread of `desire` reports, so that a problem does not come after its end."""
        mistaken = []
        for namespace in sorted(namespaces):
            known = self._policies.get(namespace)
            if known is not None and known.mistake:
                mistaken.append(f"{namespace} ({known.mistake})")
        mistake = _mistake_words(mistaken) if mistaken else None
        if mistake != self._mistake:
            self._mistake = mistake
            self._on_mistake(mistake)

    def _policy(self, namespace: str, now: float) -> IdlePolicy | None:
        """The policy of a namespace, at most RECHECK_S old. Raises KubeError: nothing is done then."""
        known = self._policies.get(namespace)
        is_recent = known is not None and now - known.at < RECHECK_S
        if known is not None and is_recent:
            return known.policy
        label = self._label(namespace)
        policy = parse_policy(label or None)
        mistake = label if policy is None else ""
        is_new_mistake = bool(mistake) and (known is None or known.mistake != mistake)
        if is_new_mistake:
            # Once for each text, because the label is read again and again.
            log.warning("Ignored an idle policy", extra={"namespace": namespace, "label": label})
        self._policies[namespace] = _Read(policy, mistake, now)
        return policy

    def _label(self, namespace: str) -> str:
        """The namespace's label about idle pods; empty without one. Raises KubeError."""
        stored = self._client.get(f"/api/v1/namespaces/{namespace}", _FIELDS)
        metadata = mapping(stored.get("metadata"))
        labels = mapping(metadata.get("labels"))
        return text(labels.get(WHEN_IDLE_LABEL))

    def _evict(self, pod: IdlePod, policy: IdlePolicy) -> None:
        if not self._version:
            self._version = self._served_version()
        name = pod.name
        body = {
            "apiVersion": self._version,
            "kind": "Eviction",
            "metadata": {"name": name.name, "namespace": name.namespace},
            # Another pod may have the name by now.
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        try:
            self._client.create(f"/api/v1/namespaces/{name.namespace}/pods/{name.name}/eviction", body)
        except ApiError as err:
            if err.status in _GONE:
                return
            why = "a PodDisruptionBudget does not allow it now" if err.status == _BUDGET else str(err)
            self._tell(pod, policy, f"; it is to be evicted, but {why}")
            return
        message = f"{_message(pod, policy)}; it is evicted"
        self._send(pod, Announcement("GPUIdleEvicted", message, warning=True, pods=(name,)))

    def _tell(self, pod: IdlePod, policy: IdlePolicy, more: str = "") -> None:
        message = _message(pod, policy) + more
        self._send(pod, Announcement("GPUIdle", message, warning=True, pods=(pod.name,)))

    def _send(self, pod: IdlePod, announcement: Announcement) -> None:
        """Send an Event, unless the last one was the same."""
        if self._sent.get(pod.uid) == announcement:
            return
        self._sent[pod.uid] = announcement
        log.info(announcement.reason, extra={"pod": str(pod.name), "text": announcement.message})
        self._announce(announcement)

    def _served_version(self) -> str:
        """The API version of evictions: policy/v1beta1 before Kubernetes 1.22."""
        served = self._client.get("/api/v1")
        for resource in mappings(served.get("resources")):
            if resource.get("name") == _EVICTION:
                group = text(resource.get("group"))
                version = text(resource.get("version"))
                return f"{group}/{version}"
        return "policy/v1"


def _message(pod: IdlePod, policy: IdlePolicy) -> str:
    """Without the time for which it is idle: the same again is no other Event."""
    minutes = round(policy.after_s / 60)
    return (
        f"no GPU has worked for the pod for {minutes} minutes or longer, and namespace {pod.name.namespace} has the "
        f"label {WHEN_IDLE_LABEL}={policy.label}"
    )


def _mistake_words(mistaken: list[str]) -> str:
    """Of namespaces, each with the value of its label."""
    return (
        f"label {WHEN_IDLE_LABEL} is not a policy on namespace {first_of(mistaken, MOST_NAMED)}, so nothing is done "
        f"about their idle pods. Write it as report-after-2h or evict-after-8h: a number of m, h or d, "
        f"{LEAST_S / 60:.0f} minutes or longer"
    )
