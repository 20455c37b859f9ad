"""The allocator of pools: observes, solves, and executes decisions."""
