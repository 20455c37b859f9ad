"""The command line for people: what they ask a running control plane."""
