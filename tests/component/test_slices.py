"""The device plugin before a kubelet that a test plays."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from tidegate_localcluster.device_plugin import SOCKET, SharedGpuPlugin
from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.state import StateDir

DEVICES = b"".join(b"\x0a\x12\x0a\x07slice-%d\x12\x07Healthy" % index for index in range(2))
"""Two Devices as k8s.io/kubelet spells them on the wire."""


def test_kubelet_is_told_of_the_slices_and_gets_the_names_of_those_it_hands_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = StateDir(tmp_path)
    folder = files.data / "nodes" / "node-0" / "kubelet" / "device-plugins"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)  # a socket's path has at most 107 characters
    registered: list[bytes] = []
    told = threading.Event()

    def register(request: bytes, _context: object) -> bytes:
        registered.append(request)
        told.set()
        return b""

    kubelet = grpc.server(ThreadPoolExecutor(max_workers=2))
    handlers: Any = grpc.method_handlers_generic_handler(
        "v1beta1.Registration", {"Register": grpc.unary_unary_rpc_method_handler(register)}
    )
    kubelet.add_generic_rpc_handlers((handlers,))
    kubelet.add_insecure_port("unix:kubelet.sock")
    kubelet.start()
    try:
        with SharedGpuPlugin(files, 2), grpc.insecure_channel(f"unix:{SOCKET}") as channel:
            assert told.wait(10)
            assert b"v1beta1" in registered[0]
            assert b"nvidia.com/gpu.shared" in registered[0]
            plugin = "/v1beta1.DevicePlugin"
            listed: Any = channel.unary_stream(f"{plugin}/ListAndWatch")(b"", timeout=10)
            assert next(iter(listed)) == DEVICES
            allocate: Any = channel.unary_unary(f"{plugin}/Allocate")
            answer = allocate(b"\x0a\x09\x0a\x07slice-1", timeout=10)
            assert b"TIDEGATE_SLICES" in answer
            assert b"slice-1" in answer
        assert not (folder / SOCKET).exists()
    finally:
        kubelet.stop(grace=None).wait(10)


def test_without_a_kubelet_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(LocalClusterError, match="no kubelet listens"), SharedGpuPlugin(StateDir(tmp_path), 2):
        pass
