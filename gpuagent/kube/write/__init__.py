"""Writes the Node, ConfigMaps and annotations of pods, and sends Events. Nothing here blocks its caller. Each of the
first three is a `KeyedReconciler` with a thread of its own, so that a slow request delays only its own kind. Events are
not level-triggered: `event_sender` sends each once, from a bounded queue.
"""
