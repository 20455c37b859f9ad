"""Assign the slices of a pool to the Inferences that ask for them."""
