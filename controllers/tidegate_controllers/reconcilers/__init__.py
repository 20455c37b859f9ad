"""One reconciler per kind."""
