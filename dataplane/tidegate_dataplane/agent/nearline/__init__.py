"""The near-line worker of the pod: messages of a stream are asked of Triton, and answers go to a store."""
