"""Builders: from a parsed spec to the Kubernetes objects that realise it. Pure, one file per kind."""
