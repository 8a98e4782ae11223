"""Tools around the operating system: logs, growing pauses, watched directories, atomic files, signals, output to
terminals and pipes, the fence file, and the last mode that was in force. It decides nothing.
"""
