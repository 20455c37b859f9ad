"""GPU slices by NVIDIA's device plugin: each GPU under MPS is offered as so many devices nvidia.com/gpu.shared.

What the plugin reads and does is described in its README, section "With CUDA MPS", and was read in its source
(api/config/v1, cmd/mps-control-daemon). What follows from it here: a limit is one of a process, so a pod is one GPU process
and has one slice; one MPS server takes processes of one user; a changed configuration restarts MPS under all pods of a node.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from tidegate.api.compute_pool import ComputePool, MpsSlice, TaintEffect, Toleration, TolerationOperator
from tidegate.api.inference import ModelFormat, Tier
from tidegate.api.quantities import parse_quantity
from tidegate.api.reasons import Reason
from tidegate.resources.sharing.backend import (
    Refused,
    Seat,
    Taken,
    left_for_server,
    pool_labels,
)

SHARED_GPU: Final = "nvidia.com/gpu.shared"
CONFIG_LABEL: Final = "nvidia.com/device-plugin.config"
"""Node label: which key of the plugin's ConfigMap the node runs with."""
GPU_COUNT_LABEL: Final = "nvidia.com/gpu.count"
_STRATEGY_LABEL: Final = "nvidia.com/gpu.sharing-strategy"
_CAPABLE_LABEL: Final = "nvidia.com/mps.capable"
GPU_TAINT: Final = Toleration(
    key="nvidia.com/gpu", operator=TolerationOperator.EXISTS, effect=TaintEffect.NO_SCHEDULE
)
"""Of the taint that keeps pods without a GPU away from nodes that have some."""
_OF_OTHER_PROCESSES: Final = frozenset({ModelFormat.PYTHON})
"""Triton runs them in processes beside its own, each of which is a client of MPS of its own."""


def config_key(slices_per_gpu: int) -> str:
    """The key of the plugin's ConfigMap, and the value of the node label, for so many slices."""
    return f"mps-{slices_per_gpu}"


def plugin_config(slices_per_gpu: int) -> dict[str, object]:
    """What stands under that key: a configuration of the device plugin, version v1."""
    gpus = {"name": "nvidia.com/gpu", "replicas": slices_per_gpu}
    return {
        "version": "v1",
        "flags": {"migStrategy": "none"},
        "sharing": {
            "mps": {
                # Else a pod that asks for a whole GPU (nvidia.com/gpu) would get a slice, and nobody would tell it.
                "renameByDefault": True,
                "failRequestsGreaterThanOne": True,
                "resources": [gpus],
            }
        },
    }


def labels_fit(labels: Mapping[str, str], slices_per_gpu: int) -> bool:
    """Whether a node is to share its GPUs out in so many slices, and GPU feature discovery has seen that it does."""
    gpus = labels.get(GPU_COUNT_LABEL, "")
    return (
        labels.get(CONFIG_LABEL) == config_key(slices_per_gpu)
        and labels.get(_STRATEGY_LABEL) == "mps"
        and gpus.isdecimal()
        and int(gpus) > 0
    )


def one_process_on_one_slice(slices: int, model: ModelFormat) -> Refused | None:
    """Why MPS cannot limit a pod of so many slices, or with such a model, as a slice is; None when it can."""
    if slices > 1:
        message = (
            f"a replica wants {slices} slices, and a process on a shared GPU has one: set spec.placement.slices to 1, "
            "and use a pool of larger slices (a smaller slicesPerGPU) where the model needs more"
        )
        return Refused(Reason.TOO_MANY_SLICES, message)
    if model in _OF_OTHER_PROCESSES:
        message = (
            f"a model of format {model.value} runs in a process beside Triton's, and each process would have the limits "
            "of a whole slice: export it as ONNX or TensorRT, or place it in a pool of CPU slices"
        )
        return Refused(Reason.MODEL_NOT_SHAREABLE, message)
    return None


def gpu_slice_takes(resource: str, one: MpsSlice) -> Taken:
    """What a slice of a GPU takes of its node: one of `resource`, and the CPU and memory beside it."""
    return {
        resource: Decimal(1),
        "cpu": parse_quantity(one.cpu),
        "memory": parse_quantity(one.memory),
        "pods": Decimal(1),
    }


def gpu_tolerations(pool: ComputePool) -> tuple[Toleration, ...]:
    """The pool's own, and the one of the taint that GPU nodes usually have."""
    return (GPU_TAINT, *pool.spec.tolerations)


@dataclass(frozen=True, slots=True)
class DevicePluginSharing:
    """NVIDIA's device plugin shares each GPU of a node out in equal slices."""

    pool: ComputePool
    one: MpsSlice

    @property
    def slice_takes(self) -> Taken:
        """One device, and the CPU and memory beside it."""
        return gpu_slice_takes(SHARED_GPU, self.one)

    @property
    def tolerations(self) -> tuple[Toleration, ...]:
        """The pool's own, and the one of the taint that GPU nodes usually have."""
        return gpu_tolerations(self.pool)

    def refusal(self, slices: int, model: ModelFormat) -> Refused | None:
        """A pod has one slice, and all of its GPU work is in Triton's own process."""
        return one_process_on_one_slice(slices, model)

    def unconfigured(self, labels: Mapping[str, str], allocatable: Taken) -> str:
        """The label that names the configuration, what GPU feature discovery saw of it, and what the plugin offers."""
        key = config_key(self.one.slices_per_gpu)
        label = labels.get(CONFIG_LABEL)
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
        offered, due = int(allocatable.get(SHARED_GPU, Decimal(0))), int(gpus) * self.one.slices_per_gpu
        # The plugin withdraws all slices of a GPU that fails: whole GPUs less are fewer healthy ones of the right size.
        if not 0 < offered <= due or offered % self.one.slices_per_gpu:
            return (
                f"offers {offered} {SHARED_GPU} instead of {due} ({gpus} GPUs of {self.one.slices_per_gpu} slices): look at "
                "the logs of the device plugin and of its MPS control daemon there"
            )
        return ""

    def offered_when_well(self, labels: Mapping[str, str]) -> Taken:
        """The slices of all GPUs that GPU feature discovery has counted."""
        return {SHARED_GPU: Decimal(int(labels[GPU_COUNT_LABEL]) * self.one.slices_per_gpu)}

    def seat(self, slices: int, tier: Tier) -> Seat:
        """One slice, under the pool's user; what is not real-time gives way on the GPU."""
        spec = self.pool.spec
        cpu, memory = left_for_server(self.one.cpu, self.one.memory, slices)
        return Seat(
            labels=pool_labels(self.pool, slices),
            node_selector={**spec.node_selector, _CAPABLE_LABEL: "true"},
            tolerations=tuple(each.pod_form() for each in self.tolerations),
            cpu=cpu,
            memory=memory,
            devices={SHARED_GPU: str(slices)},
            env={"CUDA_MPS_CLIENT_PRIORITY": "0" if tier is Tier.REALTIME else "1"},
            run_as_user=self.one.run_as_user,
            shared_memory_of_node=True,
        )
