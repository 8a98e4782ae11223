"""What the API server should say: the Node, ConfigMaps, annotations of pods, failed pods."""
