"""Log samples and watch over a runner inside Triton; copied into version folders, so it imports only NumPy."""
