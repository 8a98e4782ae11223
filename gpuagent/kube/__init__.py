"""The edge to the API server, and the only importer of `kubernetes`. It translates and transports; it decides
nothing. Its library (0.2 to 0.5 s, 30 MiB) is loaded by the first call, in the thread that makes it, after
registration with kubelet has begun. `reconciler` joins the core's report with what is watched and written.
"""
