"""The sources of the container image, and the command that builds it; see docs/image.md."""
