"""Compile the graphs of served versions: a process of its own beside the server, at low priority and with a bound of memory."""
