"""Errors of the demo; each message names the object, what was observed, and the way out."""

from tidegate_localcluster.errors import LocalClusterError


class DemoError(LocalClusterError):
    """A step of the demo did not do what it demonstrates."""


class CommandError(DemoError):
    """A program that the demo runs failed; the message holds its output."""
