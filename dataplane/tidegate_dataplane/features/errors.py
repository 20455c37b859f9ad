"""What is wrong with a plan, a table or a request, in words that name it."""


class FeatureError(ValueError):
    """A plan, a table or a request that the engine cannot use; the message names table, column and number."""
