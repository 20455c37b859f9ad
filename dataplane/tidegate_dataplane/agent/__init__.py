"""Sidecar of a model pod: fetch artefacts, control Triton on loopback, and report the observed state."""
