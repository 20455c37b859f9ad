"""The process beside a feature server that reads streams of events into the pod's event store."""
