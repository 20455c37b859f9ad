"""Plan a FeatureCompute."""
