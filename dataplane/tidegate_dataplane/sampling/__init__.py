"""What a runner inside Triton needs to log samples: it is copied into version folders, so only NumPy is imported."""
