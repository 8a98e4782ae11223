"""Prometheus metrics of the agent."""

from gpuagent.metrics.meter import CONTENT_TYPE, Metrics
from gpuagent.metrics.reading import EndpointView, Sources

__all__ = ["CONTENT_TYPE", "EndpointView", "Metrics", "Sources"]
