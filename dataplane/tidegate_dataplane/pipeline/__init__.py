"""What a pipeline does with a batch of requests: asks its features and models through the gateway, and merges their answers."""
