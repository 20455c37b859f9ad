"""The dashboard and the REST API: they read; nothing here writes to the cluster."""
