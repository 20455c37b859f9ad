"""A device plugin by which a real node offers GPU slices without a GPU.

The scheduler and the kubelet count and allocate them like NVIDIA's, so that a node can be full; no device is behind
them. Only on request: `tidegate local slices`, or `SharedGpuPlugin` in a test. When it ends, the node has none of them.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Self

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tidegate_localcluster.errors import LocalClusterError
from tidegate_localcluster.node import node_name
from tidegate_localcluster.simulated_nodes import SHARED_GPU
from tidegate_localcluster.state import StateDir

API_VERSION: Final = "v1beta1"
SOCKET: Final = "tidegate-slices.sock"
SLICES_VARIABLE: Final = "TIDEGATE_SLICES"
"""The environment variable of a container with slices that contains their names."""
_TIMEOUT_S: Final = 10.0
_TEXT: Final = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
# k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto, those fields that are used: name → (number, type, repeated).
_MESSAGES: Final[dict[str, dict[str, tuple[int, str, bool]]]] = {
    "Empty": {},
    "RegisterRequest": {
        "version": (1, "", False),
        "endpoint": (2, "", False),
        "resource_name": (3, "", False),
    },
    "Device": {"ID": (1, "", False), "health": (2, "", False)},
    "ListAndWatchResponse": {"devices": (1, "Device", True)},
    "ContainerAllocateRequest": {"devices_ids": (1, "", True)},
    "AllocateRequest": {"container_requests": (1, "ContainerAllocateRequest", True)},
    "Variable": {"key": (1, "", False), "value": (2, "", False)},
    "ContainerAllocateResponse": {"envs": (1, "Variable", True)},
    "AllocateResponse": {"container_responses": (1, "ContainerAllocateResponse", True)},
}


def _message_types() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="tidegate-slices.proto", package=API_VERSION, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, repeated) in fields.items():
            added = message.field.add(name=field, number=number)
            added.label = added.LABEL_REPEATED if repeated else added.LABEL_OPTIONAL
            added.type = added.TYPE_MESSAGE if kind else _TEXT
            if kind:
                added.type_name = f".{API_VERSION}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{API_VERSION}.{name}"))
        for name in _MESSAGES
    }


_TYPES: Final = _message_types()


class SharedGpuPlugin:
    """A context manager that offers `count` slices on a real node of a running cluster.

    A kubelet that restarts meanwhile forgets them.
    """

    def __init__(self, files: StateDir, count: int, *, node: str = node_name(0)) -> None:
        """Set the node and the number of slices; offer none yet."""
        self._folder = files.data / "nodes" / node / "kubelet" / "device-plugins"
        self._devices = tuple(f"slice-{index}" for index in range(count))
        self._ended = threading.Event()
        self._server: grpc.Server | None = None

    def __enter__(self) -> Self:
        """Offer the slices. Raises LocalClusterError when the node's kubelet does not accept them."""
        if not (self._folder / "kubelet.sock").exists():
            raise LocalClusterError(
                f"no kubelet listens in {self._folder}: start the cluster, without --control-plane-only"
            )
        # A socket's path has at most 107 characters; those of state folders are longer.
        folder = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._start_server(f"unix:///proc/{os.getpid()}/fd/{folder}")
        finally:
            os.close(folder)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Withdraw the slices: the node's allocatable number becomes 0."""
        self._ended.set()
        if self._server is not None:
            self._server.stop(grace=None).wait(_TIMEOUT_S)
        (self._folder / SOCKET).unlink(missing_ok=True)

    def wait_until_ended(self) -> None:
        """Wait until the context has ended in another thread."""
        self._ended.wait()

    def _start_server(self, folder: str) -> None:
        (self._folder / SOCKET).unlink(missing_ok=True)
        server = grpc.server(ThreadPoolExecutor(max_workers=4))
        server.add_generic_rpc_handlers((self._make_handlers(),))
        server.add_insecure_port(f"{folder}/{SOCKET}")
        server.start()
        self._server = server
        request = _TYPES["RegisterRequest"](version=API_VERSION, endpoint=SOCKET, resource_name=SHARED_GPU)
        with grpc.insecure_channel(f"{folder}/kubelet.sock") as channel:
            register: Any = channel.unary_unary(
                f"/{API_VERSION}.Registration/Register",
                request_serializer=_TYPES["RegisterRequest"].SerializeToString,
                response_deserializer=_TYPES["Empty"].FromString,
            )
            try:
                register(request, timeout=_TIMEOUT_S)
            except grpc.RpcError as error:
                server.stop(grace=None)
                raise LocalClusterError(f"the kubelet did not accept {SHARED_GPU}: {error}") from error

    def _make_handlers(self) -> Any:
        empty = _TYPES["Empty"]
        return grpc.method_handlers_generic_handler(
            f"{API_VERSION}.DevicePlugin",
            {
                "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(
                    _send_options,
                    request_deserializer=empty.FromString,
                    response_serializer=empty.SerializeToString,
                ),
                "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                    self._list_and_watch,
                    request_deserializer=empty.FromString,
                    response_serializer=_TYPES["ListAndWatchResponse"].SerializeToString,
                ),
                "Allocate": grpc.unary_unary_rpc_method_handler(
                    _allocate_slices,
                    request_deserializer=_TYPES["AllocateRequest"].FromString,
                    response_serializer=_TYPES["AllocateResponse"].SerializeToString,
                ),
            },
        )

    def _list_and_watch(self, _request: object, context: grpc.ServicerContext) -> Iterator[Any]:
        context.add_callback(self._ended.set)
        yield make_device_list(self._devices)
        self._ended.wait()


def _send_options(_request: object, _context: object) -> Any:
    return _TYPES["Empty"]()


def _allocate_slices(request: Any, _context: object) -> Any:
    return make_allocation(request)


def make_device_list(devices: Sequence[str]) -> Any:
    """Return a ListAndWatchResponse: these devices, all healthy."""
    messages = [_TYPES["Device"](ID=device, health="Healthy") for device in devices]
    return _TYPES["ListAndWatchResponse"](devices=messages)


def make_allocation(request: Any) -> Any:
    """Return an AllocateResponse that sets SLICES_VARIABLE in every container of the AllocateRequest."""
    responses = [
        _TYPES["ContainerAllocateResponse"](
            envs=[_TYPES["Variable"](key=SLICES_VARIABLE, value=",".join(container.devices_ids))]
        )
        for container in request.container_requests
    ]
    return _TYPES["AllocateResponse"](container_responses=responses)
