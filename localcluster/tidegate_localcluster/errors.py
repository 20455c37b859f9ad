"""What can go wrong with the local cluster, in words that name the object and the way out."""


class LocalClusterError(Exception):
    """The local cluster could not do what was asked; the message is meant for the person who asked."""


class BinaryUnavailableError(LocalClusterError):
    """A program is neither here nor can it be downloaded, built or unpacked."""


class ProcessDiedError(LocalClusterError):
    """A part of the cluster ended although it should run."""


class NotReadyError(LocalClusterError):
    """A part of the cluster runs but did not become ready in time."""
