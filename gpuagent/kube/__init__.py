"""The edge to the API server, and the only importer of `kubernetes`. It translates and transports; it decides nothing.
The first call loads its library (0.2 to 0.5 s, 30 MiB), in its own thread, after registration with kubelet has begun.
`cluster_sync` joins the core's report with what is watched and written.
"""
