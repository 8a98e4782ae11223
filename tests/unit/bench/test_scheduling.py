"""Jobs that compete for GPUs in the scheduler's core."""

from bench.result import Results
from bench.scheduling import jobs


def test_every_job_runs_whole():
    results = Results()
    jobs.measure(results, 30, lambda _: None)
    assert results.rows[0].holds
    assert results.rows[0].value.startswith("30 whole, 0 in part")
