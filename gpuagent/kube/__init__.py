"""The edge to the API server. It translates and transports; it decides nothing. The first call loads urllib3, in its
own thread, after registration with kubelet has begun. Kubernetes' own library reads kubeconfig files, so no pod loads
it. `cluster_sync` joins the core's report with what is watched and written. `no_cluster` takes its place in an agent
without an API server.
"""
