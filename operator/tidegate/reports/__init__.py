"""Reports of commands: objects in, lines and JSON out. Nothing here reads a cluster or a clock."""
