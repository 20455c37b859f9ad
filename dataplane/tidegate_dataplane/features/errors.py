"""The error of the feature engine."""


class FeatureError(ValueError):
    """A plan, a table or a request that the engine cannot use; the message names table, column and number."""
