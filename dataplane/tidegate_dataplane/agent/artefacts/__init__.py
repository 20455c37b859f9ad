"""Artefacts: where they come from, what is in them, and whether they are what was asked for."""
