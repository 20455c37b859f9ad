"""Which way of sharing a pool's spec asks for."""

from tidegate.api.compute_pool import ComputePool
from tidegate.resources.sharing.backend import SharingBackend
from tidegate.resources.sharing.cpu import CpuSharing


def sharing_of(pool: ComputePool) -> SharingBackend:
    """The pool's way of sharing."""
    return CpuSharing(pool)
