"""Solver for the replicas of each Inference in each pool: a pure, seeded, time-boxed function of one snapshot."""
