"""Run the feature engine inside Triton."""
