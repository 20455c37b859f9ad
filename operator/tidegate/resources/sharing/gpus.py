"""GPUs as NVIDIA's DRA driver publishes them: read from ResourceSlices, and from the ResourceClaims that they are allocated to."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidegate.api.meta import ObjectKey
from tidegate.api.quantities import parse_quantity
from tidegate.resources.names import MANAGED_BY, MANAGER, POOL_LABEL

DRIVER: Final = "gpu.nvidia.com"
DEVICE_CLASS: Final = "gpu.nvidia.com"
_KEEPS_PODS_AWAY: Final = frozenset({"NoSchedule", "NoExecute"})


@dataclass(frozen=True, slots=True, order=True)
class DeviceId:
    """Which device of the driver it is."""

    pool: str
    """The driver's pool of devices, one for each node; no ComputePool."""
    device: str


@dataclass(frozen=True, slots=True)
class PublishedGpu:
    """A GPU in a ResourceSlice."""

    id: DeviceId
    memory_bytes: int
    """Zero where the driver does not say."""
    well: bool
    """Whether no taint of the device keeps pods away."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of a node, and who has it."""

    published: PublishedGpu
    claim: ObjectKey | None = None
    """The ResourceClaim that it is allocated to."""
    pool: str = ""
    """The ComputePool whose claim that is, as a label has it; empty for anybody else's."""


def published_gpus(resource_slice: Mapping[str, Any]) -> tuple[PublishedGpu, ...]:
    """The whole GPUs of a ResourceSlice of the driver; none of other drivers', and none that is no GPU (a MIG slice, say)."""
    spec = resource_slice["spec"]
    if spec["driver"] != DRIVER:
        return ()
    return tuple(
        PublishedGpu(
            id=DeviceId(spec["pool"]["name"], each["name"]),
            memory_bytes=_memory_bytes(each),
            well=all(taint["effect"] not in _KEEPS_PODS_AWAY for taint in each.get("taints") or ()),
        )
        for each in spec.get("devices") or ()
        if (each.get("attributes") or {}).get("type", {}).get("string") == "gpu"
    )


def allocated(claim: Mapping[str, Any]) -> Iterable[DeviceId]:
    """The driver's devices that a ResourceClaim has."""
    results = ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results") or ()
    return tuple(DeviceId(each["pool"], each["device"]) for each in results if each["driver"] == DRIVER)


def pool_of_claim(claim: Mapping[str, Any]) -> str:
    """The ComputePool that made a ResourceClaim, as a label has it; empty for one that we did not make."""
    labels = claim["metadata"].get("labels") or {}
    return str(labels.get(POOL_LABEL, "")) if labels.get(MANAGED_BY) == MANAGER else ""


def _memory_bytes(device: Mapping[str, Any]) -> int:
    value = (device.get("capacity") or {}).get("memory", {}).get("value")
    return int(parse_quantity(str(value))) if value is not None else 0
