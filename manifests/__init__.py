"""The manifests to install on a cluster: the chart, the plain YAML rendered from it, and the renderer."""
