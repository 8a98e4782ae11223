"""What people are shown: problems, the status page, the topology page, notices to pods."""
