"""What a runner inside Triton needs to log samples and to end in time: it is copied into version folders, so only NumPy is imported."""
