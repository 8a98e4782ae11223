"""The page that Prometheus reads: what is on it, what is not, and how it is spelled."""

import itertools
import re
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuagent.domain import events as ev
from gpuagent.domain.gpus.fence import Fence
from gpuagent.domain.gpus.gpu import Gpu
from gpuagent.domain.pods.parse_pod import parse_pod
from gpuagent.domain.pods.pod import ContainerRef, ContainerSpec, Holding, Pod, PodName
from gpuagent.domain.sharing.mode import Kind, Mode
from gpuagent.domain.state import State
from gpuagent.domain.usage.by_container import GpuProcess, GpuSample, Samples
from gpuagent.domain.usage.over_time import KEPT_S, HeldUse, NodeUsage
from gpuagent.domain.usage.process_cgroup import ProcessContainer
from gpuagent.metrics.families import CHAPTERS
from gpuagent.metrics.meter import Metrics
from gpuagent.metrics.reading import EndpointView, Sources
from standin.waiting import PATIENCE_S
from tests.unit.domain.builders import CORE, MEM, WHOLE, gpu, holding, state_of, unit_ids, uuid
from tests.unit.domain.dra.prepared_claims import claiming, prepared

ID = "{:064x}".format
GIB = 1 << 30
FAMILIES = [family for families in CHAPTERS.values() for family in families]


def pod(name: str, number: int, *containers: str) -> Pod:
    ids = {ID(number + n): container for n, container in enumerate(containers)}
    return Pod(
        PodName("ml", name), f"uid-{name}", "", {}, tuple(ContainerSpec(c, {}) for c in containers), container_ids=ids
    )


def sample(number: int, *processes: tuple[int, int | None], used: int = 0, busy: float = 0.5) -> GpuSample:
    """Processes as (number of the container's id, GiB)."""
    found = tuple(
        GpuProcess(n, None if gib is None else gib * GIB, 0.25, ProcessContainer(ID(n))) for n, gib in processes
    )
    return GpuSample(uuid=uuid(number), at=0, memory_used_bytes=used * GIB, busy=busy, processes=found)


def page(known: State, *samples: GpuSample, failing: Iterable[str] = (), seen: bool = True, **sources: Any) -> str:
    metrics = Metrics()
    sampled = Samples({one.uuid: one for one in samples}, dict.fromkeys(failing, "x"), seen)
    metrics.show(Sources(state=lambda: known, samples=lambda _: sampled, **sources))
    return metrics.page().decode()


def values(text: str, name: str) -> dict[tuple[str, ...], float]:
    """Label values, in the order of the family's labels, to value."""
    labels = next(family.labels for family in FAMILIES if family.name == name)
    return {
        tuple(one.labels[label] for label in labels): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
        if one.name == name
    }


def g(n: int) -> tuple[str, str]:
    return uuid(n), str(n)


PODS = (pod("a", 1, "main", "side"), pod("b", 10, "main"))
HELD = (
    holding("a", unit_ids(0, Kind.MEMORY_SHARE, 0, 1, 2, 3)),
    holding("a", unit_ids(0, Kind.MEMORY_SHARE, 4), container="side"),
    holding("b", unit_ids(0, Kind.MEMORY_SHARE, 5, 6) | unit_ids(1, Kind.MEMORY_SHARE, 5, 6)),
)
SHARED = state_of(pods=PODS, holdings=HELD)


def test_allocated_limit_and_used_of_gpus_and_containers() -> None:
    """GPU 0 has the two containers of a pod and one that is on both GPUs; 2 GiB of it are nobody's."""
    text = page(SHARED, sample(0, (1, 3), (2, 1), (10, 2), used=8), sample(1, used=1, busy=0.0))
    assert values(text, "gpuagent_gpu_memory_total_bytes") == {g(0): 16 * GIB, g(1): 16 * GIB}
    assert values(text, "gpuagent_gpu_memory_allocated_bytes") == {g(0): 7 * GIB, g(1): 2 * GIB}
    assert values(text, "gpuagent_gpu_memory_used_bytes") == {g(0): 8 * GIB, g(1): GIB}
    assert values(text, "gpuagent_gpu_memory_unattributed_bytes") == {g(0): 2 * GIB, g(1): GIB}
    assert values(text, "gpuagent_gpu_utilization_ratio") == {g(0): 0.5, g(1): 0.0}
    assert values(text, "gpuagent_gpu_containers") == {g(0): 3, g(1): 1}
    a, side, b = (*g(0), "ml", "a", "main"), (*g(0), "ml", "a", "side"), (*g(0), "ml", "b", "main")
    other = (*g(1), "ml", "b", "main")
    limits = {a: 4 * GIB, side: GIB, b: 2 * GIB, other: 2 * GIB}
    assert values(text, "gpuagent_container_gpu_memory_limit_bytes") == limits
    assert values(text, "gpuagent_container_gpu_memory_used_bytes") == {a: 3 * GIB, side: GIB, b: 2 * GIB, other: 0}
    assert values(text, "gpuagent_container_gpu_compute_used_ratio") == {a: 0.25, side: 0.25, b: 0.25, other: 0}
    assert values(text, "gpuagent_container_gpu_compute_limit_ratio") == {}


def test_claims_count_as_shares_and_once_for_their_gpu() -> None:
    """With isolation, a share is a part of the whole GPU, which has half a GiB more than its units."""
    gpus = [gpu(0, memory_mib=16 * 1024 + 512), gpu(1)]
    claims = (
        prepared("one", gpus[0], cores=30, layer="mps"),
        prepared("two", gpus[0], mib=2048),
        prepared("all", gpus[1], mib=gpus[1].memory_mib),
    )
    pods = tuple(map(parse_pod, (claiming("a", "one"), claiming("b", "one", "all"), claiming("c", "two"))))
    known = state_of(Mode.DRA, gpus, ev.ClaimsPrepared(claims, 1.0), ev.DraRegistered(None, 1.0), pods=pods)
    text = page(known)
    part = (16 * 1024 + 512) * 4 // 16 * (1 << 20)
    assert values(text, "gpuagent_gpu_memory_allocated_bytes") == {g(0): part + 2 * GIB, g(1): 16 * GIB}
    assert values(text, "gpuagent_gpu_compute_allocated_ratio") == {g(0): 0.3, g(1): 1.0}
    assert values(text, "gpuagent_gpu_containers") == {g(0): 3, g(1): 1}
    a, b, c = ((*g(0), "ml", name, "main") for name in "abc")
    whole = (*g(1), "ml", "b", "main")
    limits = {a: part, b: part, c: 2 * GIB, whole: 16 * GIB}
    assert values(text, "gpuagent_container_gpu_memory_limit_bytes") == limits
    assert values(text, "gpuagent_container_gpu_compute_limit_ratio") == {a: 0.3, b: 0.3, whole: 1.0}
    assert values(text, "gpuagent_container_claim_info") == dict.fromkeys(
        [(*a, "one", "mps"), (*b, "one", "mps"), (*c, "two", "none"), (*whole, "all", "none")], 1
    )
    assert values(text, "gpuagent_registered") == {("gpu.gpuagent.io",): 1}
    modes = {key[-1] for key in values(page(known, node_name="n"), "nvidia_gpu_memory_total_bytes")}
    assert modes == {"share", "exclusive"}


def test_series_end_with_the_pod() -> None:
    metrics, now = Metrics(), [SHARED]
    metrics.show(
        Sources(state=lambda: now[0], samples=lambda _: Samples({uuid(0): sample(0, (10, 2))}, pids_seen=True))
    )
    assert 'pod="b"' in metrics.page().decode()
    now[0] = state_of(pods=PODS[:1], holdings=HELD[:2])
    after = metrics.page().decode()
    assert 'pod="b"' not in after
    assert values(after, "gpuagent_gpu_unattributed_processes") == {g(0): 1}


def test_what_is_not_known_is_absent() -> None:
    """No sample, no allocations, no word from the driver: no zero stands in for them."""
    text = page(state_of(holdings=None))
    sampled = [f.name for f in FAMILIES if f.more.startswith("Sampled")]
    assert len(sampled) > 7
    unknown = [
        *sampled,
        "gpuagent_gpu_memory_allocated_bytes",
        "gpuagent_gpu_containers",
        "gpuagent_process_attribution_up",
    ]
    assert {name: values(text, name) for name in unknown} == dict.fromkeys(unknown, {})
    assert values(text, "gpuagent_gpu_memory_total_bytes") == {g(0): 16 * GIB, g(1): 16 * GIB}


def test_xids_without_a_gpu_are_counted_by_number() -> None:
    assert values(page(state_of()), "gpuagent_untied_xids_total") == {}
    raised = [ev.XidRaised(None, xid, 0.0) for xid in (79, 13, 79)]
    counted = values(page(state_of(Mode.SHARE, None, *raised)), "gpuagent_untied_xids_total")
    assert counted == {("79",): 2, ("13",): 1}


def test_pids_that_are_not_seen_make_no_container_idle() -> None:
    text = page(SHARED, sample(0, (99, 3), used=5), seen=False)
    assert values(text, "gpuagent_process_attribution_up") == {(): 0}
    assert values(text, "gpuagent_container_gpu_memory_used_bytes") == {}
    assert values(text, "gpuagent_gpu_memory_unattributed_bytes") == {g(0): 5 * GIB}
    assert values(text, "gpuagent_gpu_unattributed_processes") == {g(0): 1}


def test_memory_that_the_driver_does_not_report_is_absent_for_its_container_and_for_the_rest() -> None:
    text = page(SHARED, sample(0, (1, None), (10, 2), used=5))
    names = {key[3] for key in values(text, "gpuagent_container_gpu_memory_used_bytes")}
    assert names == {"a", "b"}  # the pod's other container, and the other pod
    assert values(text, "gpuagent_gpu_memory_unattributed_bytes") == {}


def test_a_gpu_that_does_not_answer_is_reported() -> None:
    text = page(SHARED, sample(0), failing=[uuid(1)])
    assert values(text, "gpuagent_gpu_sample_up") == {g(0): 1, g(1): 0}
    assert g(1) not in values(text, "gpuagent_gpu_memory_used_bytes")


def test_compute_is_reported_where_it_is_given_out() -> None:
    core = holding("a", unit_ids(0, Kind.CORE_CORE_MEM, *range(30)), CORE)
    text = page(state_of(Mode.CORE_MEM, holdings=(core, holding("a", unit_ids(0, Kind.MEMORY_CORE_MEM, 1)))))
    assert values(text, "gpuagent_gpu_compute_allocated_ratio") == {g(0): 0.3, g(1): 0}
    assert values(text, "gpuagent_container_gpu_compute_limit_ratio") == {(*g(0), "ml", "a", "main"): 0.3}
    assert values(page(SHARED), "gpuagent_gpu_compute_allocated_ratio") == {}


def test_a_gpu_that_another_plugin_gave_is_not_taken_for_free() -> None:
    text = page(state_of(Mode.DEFAULT, holdings=(holding("a", [uuid(0)], "nvidia.com/gpu"),)))
    assert values(text, "gpuagent_gpu_memory_allocated_bytes") == {g(1): 0}
    assert values(text, "gpuagent_gpu_containers") == {g(0): 1, g(1): 0}


def test_a_container_that_uses_what_it_was_not_given_is_shown() -> None:
    text = page(state_of(pods=PODS), sample(0, (10, 2)))
    assert values(text, "gpuagent_container_gpu_memory_used_bytes") == {(*g(0), "ml", "b", "main"): 2 * GIB}
    assert values(text, "gpuagent_container_gpu_memory_limit_bytes") == {}


def test_gpus_are_named_by_uuid_and_minor_number() -> None:
    odd = gpu(0, minor=7, index=0, model='say "GPU"\n\\')
    text = page(state_of(Mode.SHARE, [odd], ev.FenceRead(Fence(indexes=frozenset({"7"})), 0.0)))
    assert values(text, "gpuagent_gpu_info") == {(odd.uuid, "7", "0", 'say "GPU"\n\\', "00000000:01:00.0"): 1}
    assert values(text, "gpuagent_gpu_fenced") == {(odd.uuid, "7"): 1}
    assert values(text, "gpuagent_gpu_healthy") == {(odd.uuid, "7"): 0}


def test_odd_names_are_escaped_and_stay_one_series() -> None:
    odd = Holding(ContainerRef(PodName("n", 'a"b\\c\nd'), "mäin"), MEM, unit_ids(0, Kind.MEMORY_SHARE, 1))
    text = page(state_of(holdings=(odd,)))
    assert values(text, "gpuagent_container_gpu_memory_limit_bytes") == {(*g(0), "n", 'a"b\\c\nd', "mäin"): GIB}


def test_an_init_containers_pod_without_a_name_makes_no_series() -> None:
    nameless = Holding(ContainerRef(PodName("", "uid"), "init"), MEM, unit_ids(0, Kind.MEMORY_SHARE, 1))
    text = page(state_of(holdings=(nameless,)))
    assert values(text, "gpuagent_container_gpu_memory_limit_bytes") == {}
    assert values(text, "gpuagent_gpu_memory_allocated_bytes") == {g(0): GIB, g(1): 0}


def test_the_node_is_ready_or_says_why() -> None:
    bad = state_of(Mode.CGPU)
    assert values(page(bad), "gpuagent_node_ready") == {(): 0}
    assert values(page(bad), "gpuagent_problems")["IsolationMissing", "blocking"] == 1
    assert values(page(bad), "gpuagent_isolation_up") == {("none",): 0}
    assert values(page(state_of()), "gpuagent_isolation_up") == {}
    assert values(page(state_of()), "gpuagent_watch_up") == {}
    assert values(page(state_of(), api=True), "gpuagent_watch_up") == {("nodes",): 0, ("pods",): 1}


def test_resources_are_reported_whatever_the_mode() -> None:
    view = EndpointView("connected", True, 2, 4711, None)
    text = page(state_of(), endpoints=lambda: {MEM: view, WHOLE: replace(view, registered=False)})
    assert values(text, "gpuagent_registered") == {(MEM,): 1, (WHOLE,): 0}
    assert values(text, "gpuagent_registrations_total") == {(MEM,): 2, (WHOLE,): 2}
    assert values(text, "gpuagent_device_list_bytes")[MEM,] == 4711
    assert values(text, "gpuagent_devices")[WHOLE, "healthy"] == 0


def test_requests_to_the_api_server_are_counted() -> None:
    metrics = Metrics()
    for code in ("200", "200", "none"):
        metrics.api_answered("patch", code)
    text = metrics.page().decode()
    assert values(text, "gpuagent_api_requests_total") == {("patch", "200"): 2, ("patch", "none"): 1}


# -- over time -------------------------------------------------------------------------------------------------------

A_ON_0 = (uuid(0), ContainerRef(PodName("ml", "a"), "main"))
A_SERIES = (*g(0), "ml", "a", "main")
FOUR_OF_EIGHT = HeldUse("uid-a", 8 * GIB, 4 * GIB, 0.0)


def test_a_bill_an_idle_report_and_a_waste_report_are_one_counter_each() -> None:
    usage = NodeUsage().next({A_ON_0: FOUR_OF_EIGHT}, 100.0).next({A_ON_0: FOUR_OF_EIGHT}, 110.0)
    text = page(SHARED, usage=lambda: usage, clock=lambda: 115.0)
    named = "gpuagent_container_gpu_"
    assert values(text, f"{named}memory_allocated_byte_seconds_total") == {A_SERIES: 80 * GIB}
    assert values(text, f"{named}memory_used_byte_seconds_total") == {A_SERIES: 40 * GIB}
    assert values(text, f"{named}memory_unused_byte_seconds_total") == {A_SERIES: 40 * GIB}
    assert values(text, f"{named}allocated_seconds_total") == {A_SERIES: 10}
    assert values(text, f"{named}used_seconds_total") == {A_SERIES: 10}
    assert values(text, f"{named}idle_seconds_total") == {A_SERIES: 10}
    assert values(text, f"{named}busy_seconds_total") == {A_SERIES: 0}
    assert values(text, f"{named}memory_used_peak_bytes") == {A_SERIES: 4 * GIB}
    assert values(text, f"{named}idle_duration_seconds") == {A_SERIES: 15}


def test_sums_of_use_that_was_never_known_have_no_series() -> None:
    """As without `hostPID`: a sum of 0 would say that the pod never had a program on the GPU."""
    unknown = replace(FOUR_OF_EIGHT, used_bytes=None, busy=None)
    usage = NodeUsage().next({A_ON_0: unknown}, 100.0).next({A_ON_0: unknown}, 110.0)
    text = page(SHARED, usage=lambda: usage, clock=lambda: 115.0)
    for scope, series in (("container", A_SERIES), ("namespace", ("ml",))):
        named = f"gpuagent_{scope}_gpu_"
        assert values(text, f"{named}allocated_seconds_total") == {series: 10}
        assert values(text, f"{named}memory_allocated_byte_seconds_total") == {series: 80 * GIB}
        for of_use in ("used", "unused", "busy", "idle"):
            assert values(text, f"{named}{of_use}_seconds_total") == {}
        for of_memory in ("used", "unused"):
            assert values(text, f"{named}memory_{of_memory}_byte_seconds_total") == {}


def test_sums_of_a_namespace_stay_and_have_no_container_of_theirs() -> None:
    ended = NodeUsage().next({A_ON_0: FOUR_OF_EIGHT}, 100.0).next({}, 110.0).next({}, 110.0 + KEPT_S)
    text = page(SHARED, usage=lambda: ended)
    named = "gpuagent_namespace_gpu_"
    assert values(text, f"{named}allocated_seconds_total") == {("ml",): 10}
    assert values(text, f"{named}used_seconds_total") == {("ml",): 10}
    assert values(text, f"{named}unused_seconds_total") == {("ml",): 0}
    assert values(text, f"{named}busy_seconds_total") == {("ml",): 0}
    assert values(text, f"{named}idle_seconds_total") == {("ml",): 10}
    assert values(text, f"{named}memory_allocated_byte_seconds_total") == {("ml",): 80 * GIB}
    assert values(text, f"{named}memory_used_byte_seconds_total") == {("ml",): 40 * GIB}
    assert values(text, f"{named}memory_unused_byte_seconds_total") == {("ml",): 40 * GIB}


def test_a_pod_that_is_not_seen_yet_has_no_namespace_of_its_own() -> None:
    unseen = (uuid(0), ContainerRef(PodName("", ""), "main"))
    usage = NodeUsage().next({unseen: FOUR_OF_EIGHT}, 100.0).next({unseen: FOUR_OF_EIGHT}, 110.0)
    assert values(page(SHARED, usage=lambda: usage), "gpuagent_namespace_gpu_allocated_seconds_total") == {}


def test_sums_outlive_the_container_by_five_minutes_and_the_gauges_do_not() -> None:
    ended = NodeUsage().next({A_ON_0: FOUR_OF_EIGHT}, 100.0).next({}, 110.0)
    text = page(SHARED, usage=lambda: ended, clock=lambda: 115.0)
    assert values(text, "gpuagent_container_gpu_allocated_seconds_total") == {A_SERIES: 10}
    assert values(text, "gpuagent_container_gpu_memory_used_peak_bytes") == {}
    assert values(text, "gpuagent_container_gpu_idle_duration_seconds") == {}
    text = page(SHARED, usage=lambda: ended.next({}, 110.0 + KEPT_S))
    assert values(text, "gpuagent_container_gpu_allocated_seconds_total") == {}


# -- arena -----------------------------------------------------------------------------------------------------------


def test_arena_finds_what_it_adds_up() -> None:
    """One series for each pod: both containers of a pod are one, or arena would take the last for all."""
    text = page(SHARED, sample(0, (1, 3), (2, 1), (10, 2), used=8), sample(1, used=1, busy=0.0), node_name="n1")
    a, b = (("n1", "ml", name, *g(0), "share") for name in "ab")
    other = ("n1", "ml", "b", *g(1), "share")
    assert values(text, "nvidia_gpu_memory_used_bytes") == {a: 4 * GIB, b: 2 * GIB, other: 0}
    assert values(text, "nvidia_gpu_memory_total_bytes") == dict.fromkeys((a, b, other), 16 * GIB)
    assert values(text, "nvidia_gpu_duty_cycle") == {a: 50, b: 50, other: 0}


def test_arena_gets_whole_and_free_gpus() -> None:
    whole = holding("a", unit_ids(0, Kind.WHOLE_TOPOLOGY, 0), WHOLE)
    text = page(state_of(Mode.TOPOLOGY, holdings=(whole,)), sample(0, used=3), sample(1, used=1), node_name="n1")
    mine, free = ("n1", "ml", "a", *g(0), "topology"), ("n1", "", "", *g(1), "none")
    assert values(text, "nvidia_gpu_memory_used_bytes") == {mine: 3 * GIB, free: GIB}


def test_arenas_names_are_shown_only_if_asked_for() -> None:
    assert "nvidia_gpu" not in page(SHARED, sample(0))


# -- the page as a whole -----------------------------------------------------------------------------------------------


def test_the_table_of_metrics_is_clean() -> None:
    """promlint's rules, and this project's own: no unit but the base ones, no percent, no label that changes in a life."""
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    for family in FAMILIES:
        assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", family.name), family.name
        assert (family.kind == "counter") == family.name.endswith("_total")
        assert not re.search(r"_(gauge|counter|count|sum|bucket|percent|ms|mb|mib|gib|kb)(_|$)", family.name), (
            family.name
        )
        assert re.fullmatch(r"[A-Z0-9].*[^.]\.", family.help), family.help
        assert not set(family.labels) & {"pid", "container_id", "pod_uid", "le", "quantile", "job", "instance"}, (
            family.name
        )
        for label in family.labels:
            assert label == "UUID" or re.fullmatch(r"[a-z]+(_[a-z]+)*", label), label
        if family.name.endswith("_ratio"):
            assert "0 to 1" in family.help


def test_scrapers_who_come_at_once_share_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred come while a page is made: that one, and one for all of them."""
    metrics, made, begun, looks, all_came = Metrics(), [], threading.Event(), itertools.count(1), threading.Event()

    def monotonic() -> float:
        if next(looks) == 102:  # twice by the first, once by each who came
            all_came.set()
        return time.monotonic()

    def samples(_: Iterable[Gpu]) -> Samples:
        made.append(threading.current_thread())
        begun.set()
        assert all_came.wait(PATIENCE_S)
        return Samples()

    monkeypatch.setattr("gpuagent.metrics.meter.time", SimpleNamespace(monotonic=monotonic))
    metrics.show(Sources(state=lambda: SHARED, samples=samples))
    threads = [threading.Thread(target=metrics.page) for _ in range(101)]
    threads[0].start()
    assert begun.wait(PATIENCE_S)
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(made) == 2


def test_a_page_that_fails_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape that fails is seen by Prometheus; half a page, or an old one, would not be.

    Two requests come during a page and may share the next one, which fails: the other gets a page of its own.
    """
    metrics, came, turn = Metrics(), threading.Semaphore(0), itertools.count(1)
    pages: list[bytes] = []
    errors: list[str] = []

    def monotonic() -> float:
        came.release()
        return time.monotonic()

    def known() -> State:
        match next(turn):
            case 1:
                for thread in threads:
                    thread.start()
                for _ in (*threads, "the request of this page, twice", ""):
                    assert came.acquire(timeout=PATIENCE_S)
            case 2:
                raise ValueError("no state")
        return SHARED

    def request() -> None:
        try:
            pages.append(metrics.page())
        except ValueError as err:
            errors.append(str(err))

    threads = [threading.Thread(target=request) for _ in range(2)]
    monkeypatch.setattr("gpuagent.metrics.meter.time", SimpleNamespace(monotonic=monotonic))
    metrics.show(Sources(state=known))
    assert b"gpuagent_gpu_info" in metrics.page()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert errors == ["no state"]
    assert [b"gpuagent_gpu_info" in page for page in pages] == [True]
    assert next(turn) == 4, "a page each"


def test_a_page_is_never_older_than_the_wish_for_it() -> None:
    metrics, now = Metrics(), [state_of()]
    metrics.show(Sources(state=lambda: now[0]))
    metrics.page()
    now[0] = state_of(Mode.TOPOLOGY)
    assert 'gpuagent_mode{mode="topology"} 1.0' in metrics.page().decode()
