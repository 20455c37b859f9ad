"""Answer batches of requests: call features and models through the gateway, and merge their answers."""
