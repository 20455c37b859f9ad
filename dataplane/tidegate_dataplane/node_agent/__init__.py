"""The agent of a GPU node: asks NVIDIA's MPS how it is, reports it, and mends what it is asked to mend."""
