"""Writes the Node, ConfigMaps, annotations and Events; nothing here blocks its caller."""
