"""Tools around the operating system: logs, growing pauses, watched directories, atomic files, signals, and output to
terminals and pipes. Also the fence file, the last mode that was in force, and which word a mistyped one is like.
It decides nothing.
"""
