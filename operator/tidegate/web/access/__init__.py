"""Authenticate users, check their rights, and act with their identity."""
