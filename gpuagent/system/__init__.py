"""The operating system: logs, files, signals, directories, terminals."""
