"""Processes on a GPU that share it by MPS or by time, for the measurements on a machine with a GPU."""
