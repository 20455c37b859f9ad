"""Plan an Inference: its children, its rollout and its status."""
