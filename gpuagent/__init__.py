"""The per-node GPU agent: discovers GPUs, advertises them to kubelet, hands each container its share."""

__version__ = "0.1.0"
