"""How long the end-to-end tests wait for a cluster."""

WAIT_S = 180.0
"""The limit for what never comes: no test claims with it how fast anything is.

Two busy cores took 40 s to end 160 pods, which takes 15 s on two quiet ones.
"""
