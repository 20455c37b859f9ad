"""Reaches the model servers: the agents beside them, and what they report."""
