"""What pods ask for (API server), what they hold (kubelet), and what their annotations say. Everything that others
wrote is read here, strictly and within bounds; nothing raises for its content. It does not depend on a node's state.
"""
