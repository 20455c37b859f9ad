"""The demo: from nothing to predictions through the gateway, and a version swap under load that loses nothing."""
