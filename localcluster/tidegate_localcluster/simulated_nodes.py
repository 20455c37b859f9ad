"""Simulated GPU nodes: scheduling, quota and allocation on them are real, their pods are not."""

from pathlib import Path

from tidegate_localcluster.pki import Pki
from tidegate_localcluster.process import ChildProcess

SIMULATED_ANNOTATION = "kwok.x-k8s.io/node"
SHARED_GPU = "nvidia.com/gpu.shared"
GPUS_PER_NODE = 4
REPLICAS_PER_GPU = 8
NODE_CPU = "64"
NODE_MEMORY = "512Gi"
NODE_PODS = "250"


def make_simulated_gpu_node(index: int) -> dict[str, object]:
    """Return a Node as NVIDIA's device plugin and GPU feature discovery leave it, with GPUs under MPS.

    Its taint repels every pod that does not tolerate simulated nodes.
    """
    name = f"gpu-sim-{index}"
    capacity = {
        "cpu": NODE_CPU,
        "memory": NODE_MEMORY,
        "pods": NODE_PODS,
        SHARED_GPU: str(GPUS_PER_NODE * REPLICAS_PER_GPU),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {SIMULATED_ANNOTATION: "fake"},
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "node.kubernetes.io/instance-type": "gpu-sim",
                "tidegate.io/simulated": "true",
                "nvidia.com/gpu.present": "true",
                "nvidia.com/gpu.count": str(GPUS_PER_NODE),
                "nvidia.com/gpu.replicas": str(REPLICAS_PER_GPU),
                "nvidia.com/gpu.product": "NVIDIA-L40S-SHARED",
                "nvidia.com/gpu.memory": "46068",
                "nvidia.com/gpu.sharing-strategy": "mps",
                "nvidia.com/mps.capable": "true",
                "nvidia.com/device-plugin.config": f"mps-{REPLICAS_PER_GPU}",
            },
        },
        "spec": {"taints": [{"key": SIMULATED_ANNOTATION, "value": "fake", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": capacity,
            "capacity": capacity,
            "nodeInfo": {
                "architecture": "amd64",
                "bootID": "",
                "containerRuntimeVersion": "kwok",
                "kernelVersion": "simulated",
                "kubeProxyVersion": "",
                "kubeletVersion": "kwok",
                "machineID": "",
                "operatingSystem": "linux",
                "osImage": "simulated",
                "systemUUID": "",
            },
        },
    }


def make_kwok_process(
    binary: Path, pki: Pki, *, server: str, stages: Path, folder: Path, logs: Path
) -> ChildProcess:
    """Return the KWOK process, the kubelet of every simulated node; write its settings to `folder`."""
    kubeconfig = pki.write_kubeconfig(
        folder / "kwok.kubeconfig", server=server, credentials=pki.issue_client("kwok", user="kwok")
    )
    return ChildProcess(
        "kwok",
        [
            binary,
            f"--kubeconfig={kubeconfig}",
            f"--config={stages}",
            f"--manage-nodes-with-annotation-selector={SIMULATED_ANNOTATION}=fake",
            "--node-lease-duration-seconds=40",
            "--cidr=10.97.0.0/16",
            "--node-ip=10.87.255.1",
        ],
        log=logs / "kwok.log",
        directory=folder,
    )
