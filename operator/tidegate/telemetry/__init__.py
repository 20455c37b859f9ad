"""Figures in and out: queries to Prometheus, and the metrics we expose."""
