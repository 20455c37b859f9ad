"""Which way of sharing a pool's spec asks for."""

from tidegate.api.compute_pool import ComputePool
from tidegate.errors import InvalidSpecError
from tidegate.resources.sharing.backend import SharingBackend
from tidegate.resources.sharing.cpu import CpuSharing
from tidegate.resources.sharing.device_plugin import DevicePluginSharing


def sharing_of(pool: ComputePool) -> SharingBackend:
    """The pool's way of sharing; the API's rules see to it that there is one."""
    one = pool.spec.slice
    if one.mps is not None:
        return DevicePluginSharing(pool, one.mps)
    if one.cpu is not None:
        return CpuSharing(pool, one.cpu)
    raise InvalidSpecError("set exactly one of cpu and mps", path="spec.slice")
