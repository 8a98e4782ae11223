"""How long tests and stand-ins wait for what another thread or process does."""

PATIENCE_S = 60.0
"""The limit for what never comes. A busy machine may take seconds for what usually takes milliseconds."""
