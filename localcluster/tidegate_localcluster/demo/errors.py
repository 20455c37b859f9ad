"""What can go wrong in the demo, in words that name the object, what was seen of it, and the way out."""

from tidegate_localcluster.errors import LocalClusterError


class DemoError(LocalClusterError):
    """A step of the demo did not do what it shows."""


class CommandError(DemoError):
    """A program that the demo runs ended with an error; the message holds its own words."""
