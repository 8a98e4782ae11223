"""Measurements of the choice of GPU sets, beside published policies."""
