"""How many replicas each Inference holds in each pool: a pure, seeded, time-boxed decision, Snapshot in, Assignment out."""
