"""Tools around the operating system: logs, growing pauses, watched directories, atomic files, signals, and output to
terminals and pipes. Also the fence file, and the last mode that was in force. It decides nothing.
"""
