"""Isolation drivers: what keeps the containers on one GPU apart. One file a driver; `none` keeps nothing apart.

A driver is a module of this package that has `PREFERENCE` (auto takes the lowest that can serve) and `make`.
"""
