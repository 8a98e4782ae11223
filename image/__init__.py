"""What the container image is made from, and the command that makes it; see docs/image.md."""
