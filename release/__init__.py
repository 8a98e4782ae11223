"""What a release publishes beside the image: wheel, chart, kubectl plugin, krew manifest and checksums."""
