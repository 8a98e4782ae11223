"""Prepares ResourceClaims for their containers: reads the claim, has it isolated, and writes what the runtime reads. It
may import the core, `isolation` and `system`, and none of the edges.
"""
