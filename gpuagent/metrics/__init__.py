"""Prometheus metrics, and the only importer of `prometheus_client`. Counters of calls increase as calls happen; all
else is read at each scrape, from the state and a sample of the driver. `families` is the table of all metrics;
their reference is made from it.
"""
