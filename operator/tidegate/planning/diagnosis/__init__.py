"""Find problems, and judge measurements, for the command line."""
