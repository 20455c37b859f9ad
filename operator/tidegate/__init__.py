"""Tidegate's control plane: serves recommendation and ads models on Kubernetes."""

__version__ = "0.1.0"
