"""Prometheus metrics of the agent."""

from gpuagent.metrics.meter import CONTENT_TYPE, EndpointView, Metrics

__all__ = ["CONTENT_TYPE", "EndpointView", "Metrics"]
