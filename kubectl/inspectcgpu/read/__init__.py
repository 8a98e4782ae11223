"""Parses objects that other programs wrote: Nodes, pods, ConfigMaps, agents' pages. It does not call a cluster."""
