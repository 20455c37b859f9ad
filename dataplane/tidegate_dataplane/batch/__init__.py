"""Score one shard of a table on the pod's own Triton, as the process of a Job's pod."""
