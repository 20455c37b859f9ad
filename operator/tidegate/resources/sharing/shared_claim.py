"""GPU slices by NVIDIA's DRA driver (experimental): each GPU under MPS is a ResourceClaim that several pods name.

What the driver makes of it was read in its source (kubernetes-sigs/dra-driver-nvidia-gpu, api/nvidia.com/resource/v1beta1 and
cmd/gpu-kubelet-plugin). What follows from it here: a claim from a template is one pod's own GPU, so the claims have names; a
GPU has one claim, and a claim one namespace; its parameters never change, so another size is another claim.
Nobody but us counts the pods of a claim, so each waits at a scheduling gate until the claim has a slice for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from tidegate.api.compute_pool import ComputePool, MpsSlice, Toleration
from tidegate.api.inference import ModelFormat, Tier
from tidegate.api.meta import API_VERSION, ObjectKey
from tidegate.errors import InvalidSpecError
from tidegate.resources.manifest import Manifest, owner_reference
from tidegate.resources.names import MANAGED_BY, MANAGER, POOL_LABEL, child_name, label_value
from tidegate.resources.pod import POD_CLAIM
from tidegate.resources.sharing.backend import (
    Published,
    Refused,
    Seat,
    Taken,
    left_for_server,
    pool_labels,
)
from tidegate.resources.sharing.device_plugin import (
    gpu_slice_takes,
    gpu_tolerations,
    one_process_on_one_slice,
)
from tidegate.resources.sharing.gpus import DEVICE_CLASS, DRIVER, Gpu

GPU_SLICE: Final = "gpu.nvidia.com/slice"
"""What a slice takes of its node, counted by us alone: no pod asks for it by that name."""
_REQUEST: Final = "gpu"
_MIB: Final = 1 << 20


def claim_name(pool: str, slices_per_gpu: int, ordinal: int) -> str:
    """Name of the claim of one GPU in one namespace; of another size it is another claim."""
    return f"{_prefix(pool, slices_per_gpu)}{ordinal}"


def is_current(name: str, pool: str, slices_per_gpu: int) -> bool:
    """Whether a claim is one of the pool as it shares its GPUs out now."""
    prefix = _prefix(pool, slices_per_gpu)
    return name.startswith(prefix) and name.removeprefix(prefix).isdecimal()


def claim_of_pod(spec: Mapping[str, Any]) -> str:
    """The claim by which a pod, or a template of pods, of this spec shares its GPU; empty for none."""
    claims = spec.get("resourceClaims") or ()
    names = (each.get("resourceClaimName") for each in claims if each["name"] == POD_CLAIM)
    return str(next(names, None) or "")


def resource_claim(pool: ComputePool, key: ObjectKey, memory_bytes: int) -> Manifest:
    """One GPU for the pods that name it, under MPS; `memory_bytes` is the memory of the pool's smallest GPU.

    The limits are those of the device plugin: the whole parts of 100 percent, and of the memory in MiB. Since memory is limited
    in bytes and not in parts, the claim asks for a GPU that has as much.
    """
    mps = pool.spec.slice.mps
    if mps is None:
        raise InvalidSpecError("set mps", path="spec.slice")
    memory = memory_bytes // _MIB
    enough = f"device.capacity['{DRIVER}'].memory.compareTo(quantity('{memory}Mi')) >= 0"
    request = {"deviceClassName": DEVICE_CLASS, "selectors": [{"cel": {"expression": enough}}]}
    limits = {
        "defaultActiveThreadPercentage": 100 // mps.slices_per_gpu,
        "defaultPinnedDeviceMemoryLimit": f"{memory // mps.slices_per_gpu}Mi",
    }
    parameters = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "GpuConfig",
        "sharing": {"strategy": "MPS", "mpsConfig": limits},
    }
    config = {"requests": [_REQUEST], "opaque": {"driver": DRIVER, "parameters": parameters}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": key.name,
            "namespace": key.namespace,
            "labels": {MANAGED_BY: MANAGER, POOL_LABEL: label_value(pool.metadata.name)},
            "ownerReferences": [owner_reference(API_VERSION, ComputePool.KIND, pool.metadata)],
        },
        "spec": {"devices": {"requests": [{"name": _REQUEST, "exactly": request}], "config": [config]}},
    }


@dataclass(frozen=True, slots=True)
class SharedClaimSharing:
    """NVIDIA's DRA driver shares a GPU out among the pods that name its claim."""

    pool: ComputePool
    one: MpsSlice

    @property
    def slice_takes(self) -> Taken:
        """A part of a GPU, and the CPU and memory beside it."""
        return gpu_slice_takes(GPU_SLICE, self.one)

    @property
    def tolerations(self) -> tuple[Toleration, ...]:
        """The pool's own, and the one of the taint that GPU nodes usually have."""
        return gpu_tolerations(self.pool)

    @property
    def together(self) -> int:
        """As many as a GPU has slices: the pods of a Deployment all name the same claim."""
        return self.one.slices_per_gpu

    def published(self, gpus: Sequence[Gpu]) -> Published:
        """The GPUs that nobody has, or that a claim of the pool has as the pool says."""
        if not gpus:
            return Published()
        ours = [each.published for each in gpus if self._may_have(each)]
        return Published(
            offers={GPU_SLICE: Decimal(len(ours) * self.one.slices_per_gpu)},
            gpus=len(ours),
            memory_bytes=min((each.memory_bytes for each in ours), default=0),
            outdated=next((self._outdated(each) for each in gpus if self._outdated(each)), ""),
        )

    def refusal(self, slices: int, model: ModelFormat) -> Refused | None:
        """As with the device plugin: MPS limits processes."""
        return one_process_on_one_slice(slices, model)

    def unconfigured(self, labels: Mapping[str, str], allocatable: Taken) -> str:
        """Whether the driver publishes its GPUs."""
        del labels
        if GPU_SLICE in allocatable:
            return ""
        return (
            f"has no GPU in a ResourceSlice of the driver {DRIVER}: install NVIDIA's DRA driver with GPUs and its feature gate "
            "MPSSupport enabled, and keep the device plugin off this node; then look at the driver's kubelet plugin there"
        )

    def offered_when_well(self, labels: Mapping[str, str]) -> Taken:
        """GPUs with a taint of the driver are not counted at all."""
        del labels
        return {}

    def seat(self, slices: int, tier: Tier) -> Seat:
        """One slice, under the pool's user; which claim it is depends on who else is there, see planning.gpu_choice."""
        spec = self.pool.spec
        cpu, memory = left_for_server(self.one.cpu, self.one.memory, slices)
        return Seat(
            labels=pool_labels(self.pool, slices),
            node_selector=dict(spec.node_selector),
            tolerations=tuple(each.pod_form() for each in self.tolerations),
            cpu=cpu,
            memory=memory,
            env={"CUDA_MPS_CLIENT_PRIORITY": "0" if tier is Tier.REALTIME else "1"},
            run_as_user=self.one.run_as_user,
            shared_memory_of_node=True,
        )

    def _may_have(self, gpu: Gpu) -> bool:
        one = gpu.published
        if not one.well or not one.memory_bytes:
            return False
        return gpu.claim is None or (self._is_ours(gpu) and self._is_current(gpu.claim))

    def _outdated(self, gpu: Gpu) -> str:
        if gpu.claim is None or not self._is_ours(gpu) or self._is_current(gpu.claim):
            return ""
        return (
            f"has ResourceClaim {gpu.claim} of another slicesPerGPU than {self.one.slices_per_gpu}: its pods stay, and those "
            "that come instead wait for a GPU of the new size; kubectl drain <node> --ignore-daemonsets "
            "--delete-emptydir-data, then kubectl uncordon <node>"
        )

    def _is_ours(self, gpu: Gpu) -> bool:
        return gpu.pool == label_value(self.pool.metadata.name)

    def _is_current(self, claim: ObjectKey) -> bool:
        return is_current(claim.name, self.pool.metadata.name, self.one.slices_per_gpu)


def _prefix(pool: str, slices_per_gpu: int) -> str:
    return f"{child_name('tidegate', pool, str(slices_per_gpu))}-"
