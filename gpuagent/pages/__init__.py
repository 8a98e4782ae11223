"""The HTTP server, and pages as tables and pictures."""
