"""Slices of a pool: what one takes of its node, what a node offers, and what a pod on slices gets.

CPU slices need no configuration on a node. GPU slices are devices nvidia.com/gpu.shared, of which NVIDIA's device plugin
offers several for each GPU under MPS. The plugin's README, section "With CUDA MPS", and its source (api/config/v1,
cmd/mps-control-daemon) say how. Three facts shape this module: MPS limits a process, so a pod has one slice and is one
GPU process; one MPS server accepts the processes of one user; a changed configuration restarts MPS under all pods of a
node.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Final

from tidegate.api.compute_pool import (
    ComputePool,
    CpuSlice,
    MpsSlice,
    TaintEffect,
    Toleration,
    TolerationOperator,
)
from tidegate.api.inference import ArtefactFormat, Tier
from tidegate.api.quantities import canonicalize_quantity, parse_quantity
from tidegate.api.reasons import Reason
from tidegate.errors import InvalidSpecError
from tidegate.resources.names import POOL_LABEL, SLICES_LABEL, to_label_value
from tidegate.resources.serving_pod import AGENT_CPU, AGENT_MEMORY

SHARED_GPU: Final = "nvidia.com/gpu.shared"
CONFIG_LABEL: Final = "nvidia.com/device-plugin.config"
"""Node label: which key of the plugin's ConfigMap the node runs with."""
GPU_COUNT_LABEL: Final = "nvidia.com/gpu.count"
_STRATEGY_LABEL: Final = "nvidia.com/gpu.sharing-strategy"
_CAPABLE_LABEL: Final = "nvidia.com/mps.capable"
_GPU_TOLERATION: Final = Toleration(
    key="nvidia.com/gpu", operator=TolerationOperator.EXISTS, effect=TaintEffect.NO_SCHEDULE
)
"""Tolerates the taint that keeps pods without a GPU away from nodes with GPUs."""
_FORMATS_OF_OTHER_PROCESSES: Final = frozenset({ArtefactFormat.PYTHON})
"""Triton runs these in processes of their own, and each is one more client of MPS."""


@dataclass(frozen=True, slots=True)
class SliceResources:
    """The resources that a pool gives to a pod: the nodes that it may run on, and its server's share of a node."""

    labels: Mapping[str, str]
    node_selector: Mapping[str, str]
    tolerations: tuple[Mapping[str, object], ...]
    cpu: str
    """Cores of the server, without the agent's, as the API server writes them."""
    memory: str
    """Memory of the server, without the agent's, as the API server writes it."""
    devices: Mapping[str, str] = field(default_factory=dict[str, str])
    """Devices of the server, by the resource's name."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment of the server."""
    run_as_user: int | None = None
    """User of the pod; None for the user of every other pod of ours."""
    shared_memory_of_node: bool = False
    """Whether the node mounts a /dev/shm into the server that all of its pods share."""


@dataclass(frozen=True, slots=True)
class PlacementRefusal:
    """Why a pool can place no replica of an Inference, with the way out."""

    reason: Reason
    message: str


def sum_slice_requests(pool: ComputePool) -> Mapping[str, Decimal]:
    """Return what one slice takes of its node, by resource, in base units.

    Each slice may be a pod of its own, so it takes one of the node's places for pods as well.
    """
    unit = _find_slice_spec(pool)
    requests = {"cpu": parse_quantity(unit.cpu), "memory": parse_quantity(unit.memory), "pods": Decimal(1)}
    return {SHARED_GPU: Decimal(1), **requests} if isinstance(unit, MpsSlice) else requests


def list_tolerations(pool: ComputePool) -> tuple[Toleration, ...]:
    """Return what pods on slices of the pool tolerate; nodes are judged by the same list."""
    if pool.spec.slice.mps is None:
        return pool.spec.tolerations
    return (_GPU_TOLERATION, *pool.spec.tolerations)


def make_slice_resources(pool: ComputePool, slices: int, tier: Tier) -> SliceResources:
    """Return the resources of a pod of this tier with this many slices.

    On a GPU, pods of other tiers than realtime yield to real-time ones.
    """
    spec, unit = pool.spec, _find_slice_spec(pool)
    cpu = parse_quantity(unit.cpu) * slices - parse_quantity(AGENT_CPU)
    memory = parse_quantity(unit.memory) * slices - parse_quantity(AGENT_MEMORY)
    resources = SliceResources(
        labels={POOL_LABEL: to_label_value(pool.metadata.name), SLICES_LABEL: str(slices)},
        node_selector=dict(spec.node_selector),
        tolerations=tuple(toleration.to_pod_toleration() for toleration in list_tolerations(pool)),
        cpu=canonicalize_quantity(f"{cpu:f}"),
        memory=canonicalize_quantity(_format_memory(memory)),
    )
    if not isinstance(unit, MpsSlice):
        return resources
    return replace(
        resources,
        node_selector={**resources.node_selector, _CAPABLE_LABEL: "true"},
        devices={SHARED_GPU: str(slices)},
        env={"CUDA_MPS_CLIENT_PRIORITY": str(tier.traits.mps_client_priority)},
        run_as_user=unit.run_as_user,
        shared_memory_of_node=True,
    )


def refuse_replica(pool: ComputePool, slices: int, model: ArtefactFormat) -> PlacementRefusal | None:
    """Return why no pod of the pool can have this many slices, or serve this format; None if one can.

    On CPU slices every number and every model is possible, as far as a node has room.
    """
    if pool.spec.slice.mps is None:
        return None
    if slices > 1:
        message = (
            f"a replica wants {slices} slices, and a process on a shared GPU has one: set spec.placement.slices to 1, "
            "and use a pool of larger slices (a smaller slicesPerGPU) where the model needs more"
        )
        return PlacementRefusal(Reason.TOO_MANY_SLICES, message)
    if model in _FORMATS_OF_OTHER_PROCESSES:
        message = (
            f"a model of format {model.value} runs in a process beside Triton's, and each process would have the limits "
            "of a whole slice: export it as ONNX or TensorRT, or place it in a pool of CPU slices"
        )
        return PlacementRefusal(Reason.MODEL_NOT_SHAREABLE, message)
    return None


def find_misconfiguration(
    pool: ComputePool, labels: Mapping[str, str], allocatable: Mapping[str, Decimal]
) -> str:
    """Explain why a node with these labels and resources does not offer the pool's slices; empty if it does.

    The text continues a sentence that begins with the node, says what to do, and contains `<node>` for its name.
    """
    mps = pool.spec.slice.mps
    if mps is None:
        return ""
    key, label = make_config_key(mps.slices_per_gpu), labels.get(CONFIG_LABEL)
    if label != key:
        has = f"{CONFIG_LABEL}={label}" if label is not None else f"no label {CONFIG_LABEL}"
        return (
            f"has {has} instead of {key}: kubectl drain <node> --ignore-daemonsets --delete-emptydir-data, then "
            f"kubectl label node <node> --overwrite {CONFIG_LABEL}={key}, then kubectl uncordon <node>"
        )
    gpus = labels.get(GPU_COUNT_LABEL, "")
    if labels.get(_STRATEGY_LABEL) != "mps" or not gpus.isdecimal():
        return (
            f"has {_STRATEGY_LABEL}={labels.get(_STRATEGY_LABEL)} and {GPU_COUNT_LABEL}={gpus or None} instead of mps "
            "and a number: look at the logs of GPU feature discovery there"
        )
    offered, expected = int(allocatable.get(SHARED_GPU, Decimal(0))), int(gpus) * mps.slices_per_gpu
    # The plugin withdraws all slices of a GPU that fails, so whole GPUs less are healthy GPUs of the right size.
    if not 0 < offered <= expected or offered % mps.slices_per_gpu:
        return (
            f"offers {offered} {SHARED_GPU} instead of {expected} ({gpus} GPUs of {mps.slices_per_gpu} slices): look at "
            "the logs of the device plugin and of its MPS control daemon there"
        )
    return ""


def count_expected_devices(pool: ComputePool, labels: Mapping[str, str]) -> Mapping[str, Decimal]:
    """Return the devices that a configured node with these labels offers while all of them work.

    These are the slices of all its GPUs.
    """
    mps = pool.spec.slice.mps
    return {} if mps is None else {SHARED_GPU: Decimal(int(labels[GPU_COUNT_LABEL]) * mps.slices_per_gpu)}


def make_config_key(slices_per_gpu: int) -> str:
    """Return the key of the plugin's ConfigMap, and value of the node label, for this many slices."""
    return f"mps-{slices_per_gpu}"


def make_plugin_config(slices_per_gpu: int) -> dict[str, object]:
    """Return the value of that key: a configuration of the device plugin, version v1."""
    gpus = {"name": "nvidia.com/gpu", "replicas": slices_per_gpu}
    return {
        "version": "v1",
        "flags": {"migStrategy": "none"},
        "sharing": {
            "mps": {
                # Otherwise a pod that requests a whole GPU (nvidia.com/gpu) would get a slice, and not know it.
                "renameByDefault": True,
                "failRequestsGreaterThanOne": True,
                "resources": [gpus],
            }
        },
    }


def is_node_configured(labels: Mapping[str, str], slices_per_gpu: int) -> bool:
    """Return whether a node is configured for this many slices, and GPU feature discovery has seen them there."""
    gpus = labels.get(GPU_COUNT_LABEL, "")
    return (
        labels.get(CONFIG_LABEL) == make_config_key(slices_per_gpu)
        and labels.get(_STRATEGY_LABEL) == "mps"
        and gpus.isdecimal()
        and int(gpus) > 0
    )


def _find_slice_spec(pool: ComputePool) -> CpuSlice | MpsSlice:
    mps, cpu = pool.spec.slice.mps, pool.spec.slice.cpu
    unit = mps if mps is not None else cpu
    if unit is None:
        raise InvalidSpecError("set exactly one of cpu and mps", path="spec.slice")
    return unit


def _format_memory(size: Decimal) -> str:
    return f"{size:f}" if size % 1024 else f"{size / 1024:f}Ki"
