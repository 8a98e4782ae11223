"""Jobs that compete for GPUs in the scheduler's core."""

from bench.result import Results
from bench.scheduling import core, jobs


def test_every_job_runs_whole():
    results = Results()
    jobs.measure(results, 30, lambda _: None)
    assert results.rows[0].holds
    assert results.rows[0].value.startswith("30 whole, 0 in part")


def test_the_core_alone_is_measured_by_step(monkeypatch):
    monkeypatch.setattr(core, "NODES", (8,))
    results = Results()
    core.measure(results, print, quick=True)
    (row,) = results.rows
    assert row.what == "processor time a pod without servers, 8 nodes"
    for step in (core.WATCH, core.FILTER, core.BIND, core.BOUND):
        assert f"{step} " in row.value
