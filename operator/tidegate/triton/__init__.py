"""Clients of model servers and of the agents beside them."""
