"""Isolation drivers keep the containers on one GPU apart: `cgpu`, `limits`, `mps` and `none`; `paired`
is two of them together. A driver adds to a container's grant and verifies the layer before the container starts; the
core advertises only what the layer supports. A driver is a module of this package with `PREFERENCE` (auto takes the
lowest that can serve) and `make`, or a folder whose module `driver` has both.
The package imports `domain`, `host` and `system`, and no third-party library.
"""
