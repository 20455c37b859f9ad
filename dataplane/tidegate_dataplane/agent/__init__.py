"""The sidecar of a model pod: fetches artefacts, drives Triton's model control on loopback, reports what is true."""
