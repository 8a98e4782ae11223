"""Writes the Node, ConfigMaps, annotations of pods and Events, and deletes failed pods, each in a thread of its own.
Nothing here blocks its caller; what failed is tried again.
"""
