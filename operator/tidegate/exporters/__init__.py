"""Exports what the controllers know, as metrics and as the inputs of the solver."""
