"""The feature engine: one implementation, run online inside Triton and offline over files."""
