"""Dead letters of NATS and Kafka: messages that cannot be used, published with the reason in their headers."""
