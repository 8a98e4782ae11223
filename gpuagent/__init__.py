"""The per-node GPU agent: discovers GPUs, advertises them to kubelet, and hands each container its share. Imports
point down only: `cli`; `agent` and `dry_run`; `simulation`; the edges `kubelet`, `kube`, `nvml`, `metrics` and
`pages`; `settings`; `allocator`; `isolation`; `host`; `system`; `domain`. The edges do not import each other.
"""

__version__ = "0.1.0"
