"""Prepare the input of the allocation solver, and carry out its decisions step by step."""
