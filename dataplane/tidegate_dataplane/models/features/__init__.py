"""Runs the feature engine inside Triton."""
