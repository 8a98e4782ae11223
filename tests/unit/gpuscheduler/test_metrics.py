"""The page of metrics has what its table says."""

import re

from gpuscheduler.metrics import CHAPTERS, NODES, PODS, SchedulerMetrics

HELD = {(one.name, one.kind) for families in CHAPTERS.values() for one in families}


def test_the_page_has_every_family_of_the_table_and_no_other():
    derived = [one for families in CHAPTERS.values() for one in families]
    counted = re.findall(r"^# TYPE (\S+) (\S+)$", SchedulerMetrics(dict).page().decode(), re.MULTILINE)
    own = {(name, kind) for name, kind in counted if not name.startswith("process_")}
    assert own < HELD
    values = {one: {("x",) * len(one.labels): 1.0} for one in derived if (one.name, one.kind) not in own}
    shown = re.findall(r"^# TYPE (\S+) (\S+)$", SchedulerMetrics(lambda: values).page().decode(), re.MULTILINE)
    assert {(name, kind) for name, kind in shown if not name.startswith("process_")} == HELD


def test_values_are_read_for_each_page():
    values = {NODES: {(): 3.0}, PODS: {("bound",): 1.0, ("waiting",): 2.0}}
    metrics = SchedulerMetrics(lambda: values)
    assert "gpuscheduler_nodes 3.0\n" in metrics.page().decode()
    values[NODES] = {(): 4.0}
    page = metrics.page().decode()
    assert "gpuscheduler_nodes 4.0\n" in page
    assert 'gpuscheduler_pods{state="waiting"} 2.0\n' in page


def test_what_happens_is_counted():
    metrics = SchedulerMetrics(dict)
    metrics.api_answered("create", "201")
    metrics.watch_failed("pods")
    metrics.watch_lagged(0.003)
    metrics.written("nudge", "ok")
    page = metrics.page().decode()
    assert 'gpuscheduler_api_requests_total{code="201",verb="create"} 1.0\n' in page
    assert 'gpuscheduler_watch_errors_total{resource="pods"} 1.0\n' in page
    assert "gpuscheduler_watch_lag_seconds_count 1.0\n" in page
    assert 'gpuscheduler_writes_total{kind="nudge",result="ok"} 1.0\n' in page
