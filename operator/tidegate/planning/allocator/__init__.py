"""Prepare the input of the allocation solver, and execute its decisions step by step."""
