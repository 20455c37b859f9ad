"""The dashboard and the REST API: pages and JSON over caches of our kinds; what changes something is done in the user's name."""
