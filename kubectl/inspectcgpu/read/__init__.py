"""Reads what other programs wrote: Nodes, pods, ConfigMaps, agents' pages. It knows no cluster."""
