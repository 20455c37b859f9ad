"""Everything that talks to the API server: the port that reconcilers see, the client behind it, and the caches."""
