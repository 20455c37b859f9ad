"""The demo: from an empty machine to predictions through the gateway, and a version swap under load."""
