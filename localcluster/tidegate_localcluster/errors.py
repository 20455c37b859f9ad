"""Errors of the local cluster; their messages name the object, the fact and the remedy."""


class LocalClusterError(Exception):
    """The local cluster could not do what was requested; the message is for the user."""


class BinaryUnavailableError(LocalClusterError):
    """A program is not on this machine and cannot be downloaded, built or unpacked."""


class ProcessDiedError(LocalClusterError):
    """A process of the cluster ended although it should run."""


class NotReadyError(LocalClusterError):
    """A process of the cluster runs but did not become ready in time."""
