"""Finds the container of a call: kubelet's calls carry device ids and no pod.

Kubelet admits one pod at a time, and lists a pod as soon as its admission begins. It adds the pod's devices in order:
init containers first, then the others, and the resources of one container in any order. So the requesting container is
the one that kubelet lists and whose next missing resource and amount are those of the call. If all containers that fit
would get the same answer, and no scheduler may have decided on a pod, the agent does not query kubelet. If the answers
differ and kubelet does not answer, the container is unknown, unless it is known by its other resource.
"""

from collections.abc import Callable, Collection, Sequence

from gpuagent.domain.deviceplugin.admission.admission_tracker import AdmissionTracker
from gpuagent.domain.deviceplugin.admission.fitting_containers import Search
from gpuagent.domain.deviceplugin.admission.kubelet_listing import KubeletListing, Listed
from gpuagent.domain.deviceplugin.admission.requester import AllocationRequest, Requester
from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.snapshot import Snapshot

Query = Callable[[Collection[PodName]], Listed | None]
"""Queries kubelet about pods; returns None if kubelet does not answer."""


def identify(
    request: AllocationRequest,
    tracker: AdmissionTracker,
    snap: Snapshot,
    query: Query | None = None,
    *,
    certainly: bool = False,
) -> Requester:
    """The container that `request` is for.

    Args:
        request: kubelet's.
        tracker: the agent's record of kubelet's calls.
        snap: the current snapshot.
        query: queries kubelet; None if kubelet has picked the devices, which the agent then checks.
        certainly: query kubelet also where all that fit would get the same answer.
    """
    search = Search(request, tracker, snap)
    fitting = search.fitting(snap.allocation_index.with_devices)
    reusing = search.reusing(fitting)
    if reusing is not None:
        return reusing
    is_only_checked = query is None
    decisions_unread = snap.schedulers.assumed and not snap.pod_list.known
    if is_only_checked and decisions_unread:
        # Not all pods of the node were read, so a decided one may be missing.
        return search.unseen(maybe_decided=True)
    # A query to kubelet takes longer than the rest of the call. So ask only if the answer depends on the container.
    if search.alike(fitting):
        matters = snap.schedulers.may_have_decided or certainly
        if not matters:
            return fitting[0] if fitting else search.unseen()
        if is_only_checked and fitting:
            return fitting[0]
    return _identify_by_kubelet(search, fitting, query)


def _identify_by_kubelet(
    search: Search,
    fitting: Sequence[Requester],
    query: Query | None,
) -> Requester:
    """The container that kubelet admits, by its list of pods and their devices."""
    listing = KubeletListing(search)
    # Ask for few pods first: usually the likely ones suffice, and a node may have hundreds.
    queried = set[PodName]()
    for pods in search.to_query(fitting):
        missing = {pod.name for pod in pods} - queried
        if missing:
            answer = query(missing) if query else None
            if answer is None:
                return search.unanswered(fitting)
            queried |= missing
            listing.add(answer)
        requester = listing.requester_among(pods)
        if requester is not None:
            return requester
    hidden = listing.hidden()
    if hidden is not None:
        return hidden
    maybe_decided = query is not None and search.snap.unread_pods
    return search.unseen(maybe_decided=maybe_decided)
