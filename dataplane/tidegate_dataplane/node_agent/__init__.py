"""Agent of a GPU node: it queries NVIDIA's MPS and reports its state."""
