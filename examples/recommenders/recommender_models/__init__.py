"""Six recommendation models, written as in PyTorch, trained with jax, and exported as PyTorch's exporter does."""
