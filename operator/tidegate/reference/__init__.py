"""Reference pages that `make generate` writes from the code."""
