"""Stand-ins for the systems around the agent, faithful and small: for the demo and for fast tests."""
