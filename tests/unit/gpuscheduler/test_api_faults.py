"""An API server that is away, slow, refuses, or has forgotten: calls get an error, and nothing is lost."""

import asyncio
import json
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from types import SimpleNamespace

import pytest

from gpuagent.domain.pods.annotations import MEMORY_ANNOTATION
from gpuagent.domain.pods.pod import PodName
from gpuagent.domain.sharing.mode import GPU_MEM
from gpuagent.kube.api.access import access
from gpuagent.kube.api.timestamp import rfc3339
from gpuscheduler import app, service
from gpuscheduler.cluster_api import connection, lease, writes
from gpuscheduler.cluster_api.connection import NotLeadingError
from gpuscheduler.cluster_api.list_watch import PAGE
from gpuscheduler.cluster_api.writes import NUDGED_ANNOTATION
from gpuscheduler.core.calls import Nudge, Report, Ungate
from gpuscheduler.core.pod_facts import COMMIT_ANNOTATION
from standin.waiting import PATIENCE_S
from tests.unit.gpuscheduler.running_scheduler import until

NOT_READ = "the scheduler's extender has not read all nodes and pods yet"


def is_nudged(cluster, name):
    return NUDGED_ANNOTATION in cluster.found(name)["metadata"]["annotations"]


@pytest.mark.parametrize("resource", ["nodes", "pods"])
def test_calls_get_an_error_until_nodes_and_pods_were_read(cluster, resource):
    cluster.share_node("n1")
    pod = cluster.pod()
    cluster.api.deny("list", resource)
    scheduler = cluster.start(ready=False)
    until(lambda: scheduler.metric(f'gpuscheduler_watch_errors_total{{resource="{resource}"}}') > 0)
    assert scheduler.get("/healthz")[0] == 200
    assert scheduler.get("/readyz") == (503, f"{NOT_READ}\n")
    assert scheduler.filter(pod)["Error"] == NOT_READ
    assert scheduler.bind(pod, "n1") == NOT_READ
    cluster.api.allow("list", resource)
    scheduler.wait_until_ready()
    assert scheduler.get("/readyz") == (200, "ok\n")
    assert scheduler.place(pod) == "n1"


def test_an_api_server_that_comes_late_is_waited_for(cluster):
    cluster.share_node("n1")
    pod = cluster.pod()
    cluster.api.stop()
    scheduler = cluster.start(ready=False)
    until(lambda: scheduler.metric('gpuscheduler_api_requests_total{code="none",verb="list"}') > 0)
    cluster.api.start()
    scheduler.wait_until_ready()
    assert scheduler.place(pod) == "n1"


def test_a_token_that_is_refused_is_not_fatal(cluster):
    cluster.share_node("n1")
    cluster.api.token = "right"
    kubeconfig = cluster.api.write_kubeconfig(cluster.directory / "with-token")
    cluster.api.token = "another"
    scheduler = cluster.start(ready=False, kubeconfig=kubeconfig)
    until(lambda: scheduler.metric('gpuscheduler_api_requests_total{code="401",verb="list"}') > 0)
    cluster.api.token = "right"
    scheduler.wait_until_ready()
    assert scheduler.place(cluster.pod()) == "n1"


def test_every_request_is_in_the_name_that_the_kubeconfig_says(cluster):
    cluster.share_node("n1")
    kubeconfig = cluster.api.write_kubeconfig(cluster.directory / "as-another")
    fields = json.loads(kubeconfig.read_text())
    fields["users"][0]["user"] |= {"as": "jo", "as-groups": ["dev", "ops"]}
    kubeconfig.write_text(json.dumps(fields))
    scheduler = cluster.start(kubeconfig=kubeconfig)
    assert scheduler.place(cluster.pod()) == "n1"
    values = dict(cluster.api.impersonated)
    assert values == {"Impersonate-User": ["jo"], "Impersonate-Group": ["dev", "ops"]}
    in_its_name = [name for name, _ in cluster.api.impersonated if name == "Impersonate-User"]
    assert len(in_its_name) >= cluster.api.requests.total()


def test_a_watch_that_breaks_goes_on_where_it_was(cluster):
    cluster.share_node("n1")
    scheduler = cluster.start()
    lists = cluster.api.requests["list pods"]
    until(lambda: cluster.api.watches)
    cluster.api.drop_watches()
    cluster.share_node("n2", memory=20)
    pod = cluster.pod(mem=20)
    until(lambda: scheduler.metric("gpuscheduler_nodes") == 2)
    assert scheduler.place(pod) == "n2"
    assert cluster.api.requests["list pods"] == lists


def test_what_happened_while_the_api_server_forgot_is_read_from_a_list(cluster):
    cluster.share_node("n1")
    scheduler = cluster.start()
    first, second = cluster.pod("p1", mem=10), cluster.pod("p2", mem=10)
    assert {scheduler.place(first), scheduler.place(second)} == {"n1"}
    until(lambda: scheduler.metric('gpuscheduler_pods{state="bound"}') == 2)
    cluster.api.stop()
    cluster.api.delete_pod("p1")
    cluster.api.objects.delete(("nodes", "", "n1"))
    cluster.share_node("n2")
    cluster.api.expire()
    cluster.api.start()
    until(lambda: scheduler.metric('gpuscheduler_pods{state="bound"}') == 1)
    third = cluster.pod("p3", mem=10)
    until(lambda: cluster.names()[-1] == "n2" and scheduler.filter(third, ["n2"])["NodeNames"])
    assert scheduler.filter(third, ["n1"])["NodeNames"] == []
    assert scheduler.place(third) == "n2"


def test_a_long_list_comes_in_pages(cluster):
    for n in range(PAGE + 20):
        cluster.pod(f"p{n}", mem=1)
    cluster.share_node("n1")
    scheduler = cluster.start()
    assert scheduler.metric('gpuscheduler_pods{state="waiting"}') == PAGE + 20
    assert cluster.api.requests["list pods"] == 2


def test_a_list_that_expires_between_its_pages_begins_again(cluster):
    for n in range(PAGE + 1):
        cluster.pod(f"p{n}", mem=1)
    cluster.api.fail("list", "pods", 410)
    scheduler = cluster.start()
    assert scheduler.metric('gpuscheduler_pods{state="waiting"}') == PAGE + 1


def _say_hello(listener):
    """Answer each request, until the listener ends."""
    while True:
        try:
            connection = listener.accept()[0]
        except OSError:
            return
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")


def test_what_answers_and_is_no_api_server_is_not_followed(cluster, caplog):
    kubeconfig = cluster.api.write_kubeconfig(cluster.directory / "other")
    cluster.share_node("n1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        kubeconfig.write_text(kubeconfig.read_text().replace(cluster.api.url, f"http://127.0.0.1:{port}"))
        answering = threading.Thread(target=_say_hello, args=[listener])
        answering.start()
        scheduler = cluster.start(ready=False, kubeconfig=kubeconfig)
        until(lambda: scheduler.metric('gpuscheduler_watch_errors_total{resource="pods"}') > 0)
        assert all("is this an API server?" in record.reason for record in caplog.records)
        listener.shutdown(socket.SHUT_RDWR)
        answering.join()
    assert scheduler.get("/readyz")[0] == 503


def test_a_binding_that_hangs_is_given_up_and_its_gpu_kept(cluster, monkeypatch):
    monkeypatch.setattr(writes, "BIND_S", 0.2)
    cluster.share_node("n1")
    scheduler = cluster.start()
    pod, other = cluster.pod("p1", mem=10), cluster.pod("p2", mem=10)
    scheduler.filter(pod)
    cluster.api.pause()
    assert "no answer in time" in scheduler.bind(pod, "n1")
    assert scheduler.filter(other)["NodeNames"] == ["n1"]
    cluster.api.resume()
    assert scheduler.place(other) == "n1"
    until(lambda: cluster.node_of("p1") == "n1")
    gpus = [cluster.found(name)["metadata"]["annotations"][MEMORY_ANNOTATION] for name in ("p1", "p2")]
    assert gpus == ['{"0":{"0":10}}', '{"0":{"1":10}}']


def test_a_list_that_hangs_is_begun_again(cluster, monkeypatch):
    monkeypatch.setattr(connection, "LIST_S", 0.2)
    cluster.share_node("n1")
    cluster.api.pause()
    scheduler = cluster.start(ready=False)
    until(lambda: scheduler.metric('gpuscheduler_watch_errors_total{resource="pods"}') > 0)
    cluster.api.resume()
    scheduler.wait_until_ready()


def test_a_watch_that_is_silent_is_opened_again(cluster, monkeypatch):
    monkeypatch.setattr(connection, "SILENCE_S", 0.2)
    cluster.share_node("n1")
    scheduler = cluster.start()
    until(lambda: cluster.api.requests["watch pods"] > 1)
    assert scheduler.place(cluster.pod()) == "n1"


def test_calls_get_an_error_while_the_cluster_is_out_of_sight(cluster, monkeypatch):
    monkeypatch.setattr(app, "GAP_S", 0.0)
    cluster.share_node("n1")
    scheduler = cluster.start()
    pod = cluster.pod()
    until(lambda: scheduler.get("/readyz")[0] == 200)
    cluster.api.stop()
    until(lambda: scheduler.get("/readyz")[0] == 503)
    assert "has not followed" in scheduler.filter(pod)["Error"]
    cluster.api.start()
    assert scheduler.place(pod) == "n1"


def test_waking_pods_is_not_lost_while_the_api_server_is_away(cluster):
    cluster.whole_node("n1")
    scheduler = cluster.start()
    cluster.api.fail("patch", "pods", 500, 429, 503)
    cluster.job("j", 2, gpus=2)
    until(lambda: is_nudged(cluster, "j-0") and is_nudged(cluster, "j-1"))
    until(lambda: scheduler.metric('gpuscheduler_writes_total{kind="nudge",result="ok"}') >= 2)


def test_only_the_process_beside_the_leader_wakes_pods(cluster, monkeypatch):
    monkeypatch.setattr(lease, "READ_S", 0.01)
    cluster.whole_node("n1")
    spec = {"holderIdentity": "another-host_1"}
    metadata = {"name": "gpu-scheduler", "namespace": "kube-system"}
    cluster.api.objects.create("leases", "kube-system", {"metadata": metadata, "spec": spec})
    scheduler = cluster.start(lease="kube-system/gpu-scheduler")
    pods = cluster.job("j", 2, gpus=2)
    until(lambda: scheduler.metric('gpuscheduler_jobs{state="waiting"}') == 1)
    until(lambda: "held by another-host_1" in scheduler.filter(pods[0])["Error"])
    assert "held by another-host_1" in scheduler.bind(pods[0], "n1")
    assert scheduler.metric("gpuscheduler_leading") == 0
    assert not is_nudged(cluster, "j-0")
    ours = {"spec": {"holderIdentity": f"{socket.gethostname()}_2"}}
    cluster.api.objects.patch(("leases", "kube-system", "gpu-scheduler"), "", ours, strategic=False)
    until(lambda: is_nudged(cluster, "j-0") and is_nudged(cluster, "j-1"))
    assert scheduler.metric("gpuscheduler_leading") == 1
    assert until(lambda: [scheduler.filter(pod)["NodeNames"] for pod in pods] == [["n1"], ["n1"]])


def test_a_new_leader_leaves_out_events_that_it_queued_long_before(cluster, monkeypatch):
    """The former leader has sent them, and the pods may do something else by now."""
    standby, clock = standby_that_was_to_tell_of(cluster, monkeypatch, "early")
    clock.now += writes.FORMER_S
    another_stops(cluster)
    until(lambda: standby.metric("gpuscheduler_leading") == 1)
    short_pod(cluster, "late")
    until(lambda: told_of(cluster))
    assert told_of(cluster) == ["late"]


def test_a_new_leader_sends_events_for_which_the_former_one_had_no_time(cluster, monkeypatch):
    _, clock = standby_that_was_to_tell_of(cluster, monkeypatch, "early")
    clock.now += writes.FORMER_S - 1
    another_stops(cluster)
    assert until(lambda: told_of(cluster)) == ["early"]


def test_a_standby_keeps_few_writes(monkeypatch):
    """Pods come and go for months, and it decides about them as the leader does."""
    clock = stopped_clock(monkeypatch)
    queue = writes.Writes(None, "standby", asyncio.Event(), None, lambda change: change.uid == "waits", None)
    for number in range(100):
        clock.now += writes.FORMER_S
        pod = PodName("default", str(number))
        queue.add(Report(pod, str(number), "WaitingForGPUs", "text"))
        queue.add(Nudge(pod, str(number)))
    queue.add(Ungate(PodName("default", "waits"), "waits"))
    clock.now += writes.FORMER_S
    queue.add(Nudge(PodName("default", "last"), "last"))
    assert len(queue) == 2, "the pod that waits, and the last write"


@pytest.mark.parametrize("fails_first", [False, True])
def test_a_change_counts_as_dropped_only_if_the_api_server_failed_before(cluster, monkeypatch, fails_first):
    """Otherwise its pod was just faster: an alert says of dropped writes that the API server was away."""
    monkeypatch.setattr(writes, "PAUSE_LIMIT_S", 0.01)
    counts = Counter()
    wanted = set()
    tried = asyncio.Event()
    ended = asyncio.Event()
    expected = {("nudge", "ok"): 1}
    if fails_first:
        expected["nudge", "dropped"] = 1

    def is_wanted(change):
        return change.uid in wanted

    async def run():
        leads = asyncio.Event()
        leads.set()
        pods = {name: cluster.pod(name)["metadata"]["uid"] for name in ("early", "late")}
        wanted.update(pods.values())
        async with connection.Connection(access(str(kubeconfig)), answered) as sending:
            queue = writes.Writes(sending, "host", leads, None, is_wanted, written)
            writing = asyncio.create_task(queue.run())
            queue.add(Nudge(PodName("default", "early"), pods["early"]))
            if fails_first:
                await tried.wait()
            wanted.discard(pods["early"])
            queue.add(Nudge(PodName("default", "late"), pods["late"]))
            await ended.wait()
            writing.cancel()

    def written(*result):
        counts[result] += 1
        if counts.total() == len(expected):
            ended.set()

    def answered(verb, code):
        if verb == "patch":
            tried.set()

    if fails_first:
        cluster.api.fail("patch", "pods", 503)
    kubeconfig = cluster.api.write_kubeconfig(cluster.directory / "kubeconfig")
    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))
    assert counts == expected


def stopped_clock(monkeypatch):
    """Seconds of the writes' queue, which a test sets."""
    clock = SimpleNamespace(now=time.monotonic())
    clock.monotonic = lambda: clock.now
    clock.time = time.time
    clock.time_ns = time.time_ns
    monkeypatch.setattr(writes, "time", clock)
    return clock


def standby_that_was_to_tell_of(cluster, monkeypatch, name):
    """A scheduler that knows why a pod waits while another one leads, and the clock of its writes."""
    monkeypatch.setattr(lease, "READ_S", 0.01)
    clock = stopped_clock(monkeypatch)
    cluster.share_node("n1", gpus=1, memory=10)
    spec = {"holderIdentity": "another-host_1"}
    metadata = {"name": "gpu-scheduler", "namespace": "kube-system"}
    cluster.api.objects.create("leases", "kube-system", {"metadata": metadata, "spec": spec})
    standby = cluster.start(lease="kube-system/gpu-scheduler")
    short_pod(cluster, name)
    until(lambda: standby.metric('gpuscheduler_pods{state="waiting"}') == 1)
    return standby, clock


def short_pod(cluster, name):
    """A pod that is larger than any GPU, of which kube-scheduler knows only that the node's total is short."""
    short = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": f"Insufficient {GPU_MEM}"}
    container = {"name": "main", "image": "work", "resources": {"limits": {GPU_MEM: "20"}}}
    status = {"phase": "Pending", "conditions": [short]}
    body = {"metadata": {"name": name}, "spec": {"containers": [container]}, "status": status}
    cluster.api.objects.create("pods", "default", body)


def told_of(cluster):
    """Names of the pods that Events are about."""
    events, _ = cluster.api.objects.all("events")
    return [event["involvedObject"]["name"] for event in events]


def another_stops(cluster):
    """kube-scheduler on another host gives the lease to the one beside our scheduler."""
    ours = {"spec": {"holderIdentity": f"{socket.gethostname()}_2"}}
    cluster.api.objects.patch(("leases", "kube-system", "gpu-scheduler"), "", ours, strategic=False)


def test_without_a_lease_calls_are_answered_and_no_pod_is_woken(cluster):
    cluster.whole_node("n1")
    scheduler = cluster.start(lease="kube-system/gpu-scheduler")
    until(lambda: scheduler.metric('gpuscheduler_api_requests_total{code="404",verb="get"}') > 0)
    pods = cluster.job("j", 2, gpus=2)
    assert until(lambda: [scheduler.filter(pod)["NodeNames"] for pod in pods] == [["n1"], ["n1"]])
    assert not is_nudged(cluster, "j-1")


def test_calls_wait_for_a_fresh_look_at_the_lease(cluster, monkeypatch):
    """As after a machine that stood still: another may lead by now."""
    monkeypatch.setattr(lease, "FRESH_S", 0.0)
    cluster.share_node("n1")
    scheduler = leading(cluster)
    assert "was not read for" in scheduler.filter(cluster.pod())["Error"]


def test_calls_get_an_error_when_the_leader_has_not_renewed_its_lease(cluster, monkeypatch):
    """As when it stood still, goes on, and another took the lease a moment ago."""
    monkeypatch.setattr(lease, "READ_S", 0.01)
    cluster.share_node("n1")
    scheduler = leading(cluster, leaseDurationSeconds=15, renewTime=rfc3339(time.time() - 20))
    pod = cluster.pod()
    assert "was not renewed in time" in scheduler.filter(pod)["Error"]
    assert "was not renewed in time" in scheduler.bind(pod, "n1")
    renewed = {"spec": {"renewTime": rfc3339(time.time())}}
    cluster.api.objects.patch(("leases", "kube-system", "gpu-scheduler"), "", renewed, strategic=False)
    assert scheduler.place(pod) == "n1"


def test_a_new_leader_gives_no_gpus_until_it_has_seen_what_the_former_one_bound(cluster):
    cluster.share_node("n1", gpus=1)
    metadata = {"name": "gpu-scheduler", "namespace": "kube-system"}
    spec = {"holderIdentity": "another-host_1"}
    cluster.api.objects.create("leases", "kube-system", {"metadata": metadata, "spec": spec})
    scheduler = cluster.start(lease="kube-system/gpu-scheduler")
    first, second = cluster.pod("p1", mem=8), cluster.pod("p2", mem=8)
    until(lambda: scheduler.metric('gpuscheduler_pods{state="waiting"}') == 2)
    cluster.api.silence()
    former = cluster.start()
    assert former.place(first) == "n1"
    ours = {"spec": {"holderIdentity": f"{socket.gethostname()}_1"}}
    cluster.api.objects.patch(("leases", "kube-system", "gpu-scheduler"), "", ours, strategic=False)
    until(lambda: scheduler.metric("gpuscheduler_leading") == 1)
    assert scheduler.filter(second)["Error"] == service.BEHIND
    until(lambda: is_nudged(cluster, "p2"))
    assert scheduler.filter(second)["Error"] == service.BEHIND
    assert scheduler.bind(second, "n1") == service.BEHIND
    cluster.api.resume()
    until(lambda: not scheduler.filter(second)["Error"])
    assert scheduler.filter(second)["NodeNames"] == []


def test_the_first_call_to_a_new_leader_waits_until_it_has_read_on(cluster):
    """An error would cost the pod a backoff of a second or more."""
    cluster.share_node("n1")
    scheduler = leading(cluster)
    pod = cluster.pod(mem=4)
    until(lambda: scheduler.metric('gpuscheduler_pods{state="waiting"}') == 1)
    assert scheduler.filter(pod)["NodeNames"] == ["n1"]


def test_the_first_call_to_a_new_leader_waits_until_it_has_read_the_lease(cluster, monkeypatch):
    monkeypatch.setattr(lease, "READ_S", 600.0)
    cluster.share_node("n1")
    metadata = {"name": "gpu-scheduler", "namespace": "kube-system"}
    spec = {"holderIdentity": "another-host_1"}
    cluster.api.objects.create("leases", "kube-system", {"metadata": metadata, "spec": spec})
    scheduler = cluster.start(lease="kube-system/gpu-scheduler")
    pod = cluster.pod(mem=4)
    until(lambda: scheduler.metric('gpuscheduler_pods{state="waiting"}') == 1)
    assert "held by another-host_1" in scheduler.filter(pod)["Error"]
    ours = {"spec": {"holderIdentity": f"{socket.gethostname()}_1"}}
    cluster.api.objects.patch(("leases", "kube-system", "gpu-scheduler"), "", ours, strategic=False)
    assert scheduler.filter(pod)["NodeNames"] == ["n1"]


def test_a_job_is_not_bound_when_another_leads_before_all_of_its_pods_came(cluster, monkeypatch):
    monkeypatch.setattr(lease, "READ_S", 0.01)
    cluster.whole_node("n1")
    scheduler = leading(cluster)
    pods = cluster.job("j", 2, gpus=2)
    until(lambda: scheduler.filter(pods[0])["NodeNames"] == scheduler.filter(pods[1])["NodeNames"] == ["n1"])
    first = scheduler.begin_bind(pods[0], "n1")
    another_leads(cluster)
    until(lambda: scheduler.metric("gpuscheduler_leading") == 0)
    assert "held by another-host_1" in scheduler.bind(pods[1], "n1")
    assert "held by another-host_1" in first.result()
    assert {cluster.node_of("j-0"), cluster.node_of("j-1")} == {None}


@pytest.mark.parametrize("code", [503, 0])
def test_a_binding_is_not_tried_again_once_another_leads(cluster, monkeypatch, code):
    """The other may have given the GPU away. After the code 0, the first try has been carried out."""
    scheduler = unaware(cluster, monkeypatch)
    pod = cluster.pod("p1", mem=10)
    assert scheduler.filter(pod)["NodeNames"] == ["n1"]
    another_leads(cluster)
    cluster.api.fail("create", "pods/binding", code)
    said = scheduler.bind(pod, "n1")
    assert "it is not tried again, because lease kube-system/gpu-scheduler is held by another-host_1" in said
    assert cluster.api.requests["create pods/binding"] == 1


def test_a_plan_is_not_written_again_once_another_leads(cluster, monkeypatch):
    scheduler = unaware(cluster, monkeypatch)
    pods = cluster.job("j", 2, gpus=1)
    until(lambda: scheduler.filter(pods[0])["NodeNames"] == scheduler.filter(pods[1])["NodeNames"] == ["n2"])
    another_leads(cluster)
    cluster.api.fail("patch", "pods", 409)
    binding = scheduler.begin_bind(pods[0], "n2")
    scheduler.bind(pods[1], "n2")
    binding.result()
    assert not any(COMMIT_ANNOTATION in cluster.found(name)["metadata"]["annotations"] for name in ("j-0", "j-1"))
    assert {cluster.node_of("j-0"), cluster.node_of("j-1")} == {None}


def test_nothing_is_sent_after_the_end_of_the_lease(cluster):
    """Binding, plan, nomination, Event, eviction, placeholder: all go this way."""

    def write_s():
        raise NotLeadingError("lease kube-system/gpu-scheduler was not renewed in time")

    async def write():
        async with connection.Connection(access(str(kubeconfig)), lambda *_: None, write_s) as writing:
            for send in (writing.create, writing.patch, writing.delete):
                with pytest.raises(NotLeadingError):
                    await send("/api/v1/namespaces/default/pods/p", {})

    kubeconfig = cluster.api.write_kubeconfig(cluster.directory / "kubeconfig")
    asyncio.run(write())
    assert not cluster.api.requests


def unaware(cluster, monkeypatch):
    """A leader with two nodes that looks at the lease only if it has to."""
    monkeypatch.setattr(lease, "READ_S", 600.0)
    monkeypatch.setattr(lease, "FRESH_S", 600.0)
    monkeypatch.setattr(writes, "PAUSE_S", 0.0)
    cluster.share_node("n1")
    cluster.whole_node("n2")
    return leading(cluster)


def another_leads(cluster):
    holder = {"spec": {"holderIdentity": "another-host_1"}}
    cluster.api.objects.patch(("leases", "kube-system", "gpu-scheduler"), "", holder, strategic=False)


def leading(cluster, **spec):
    """A scheduler beside the holder of a lease with these further fields."""
    metadata = {"name": "gpu-scheduler", "namespace": "kube-system"}
    spec["holderIdentity"] = f"{socket.gethostname()}_1"
    cluster.api.objects.create("leases", "kube-system", {"metadata": metadata, "spec": spec})
    scheduler = cluster.start(lease="kube-system/gpu-scheduler")
    until(lambda: scheduler.metric("gpuscheduler_leading") == 1)
    return scheduler
