"""Scores one shard of a table on the pod's own Triton: what a Job's pod runs until it ends."""
