"""Client of Triton on loopback: its state, and model control behind the restricted-protocol header.

Observed on Triton 2.51 (24.10), and relied upon:
- the header that opens a restricted protocol is `triton-grpc-protocol-<key>` over gRPC, `<key>` over HTTP;
- a failed load leaves the serving versions as they are, and so does one whose configuration is refused;
- `version_policy.specific` with a version that has no folder loads without an error: readiness must be checked;
- a changed configuration reloads every listed version, and the old ones answer meanwhile;
- a version whose folder has changed is reloaded alone; the old one answers meanwhile, and if the reload fails it stays;
- an unknown platform is "failed to poll from model repository"; only the server's log names it;
- a model_warmup that fails sometimes ends the server with signal 11, whatever else it serves;
- loads of one model queue behind each other; one that hangs in a model's code blocks the next, not the serving.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from tritonclient.grpc import aio  # type: ignore[import-untyped]  # publishes no types
from tritonclient.utils import InferenceServerException  # type: ignore[import-untyped]

from tidegate_dataplane.agent.config_text import ModelConfig
from tidegate_dataplane.agent.memory import MemoryByVersion, read_memory
from tidegate_dataplane.agent.model_config import CONFIG_DIGEST
from tidegate_dataplane.agent.refusals import VersionRefusal
from tidegate_dataplane.agent.state import ServerState
from tidegate_dataplane.contract import FailureReason, TensorSpec

RPC_TIMEOUT_S = 5.0
# Below the second or two that a kubelet waits for the probe.
READY_TIMEOUT_S = 0.8
# A load that was given up may still end, and then changes a configuration without our doing.
DESCRIBE_EVERY_S = 10.0
CONTROL_HEADER = "triton-grpc-protocol-tidegate-control"
NO_BACKEND = "unable to find backend library for backend"
# The server's only message for any configuration that it refuses; details are in its log. For a platform that older
# servers lack, the platform is the most likely cause.
NO_PLATFORM = "failed to poll from model repository"
NEWER_PLATFORMS = frozenset({"torch_aoti"})
# Separates the message from the traceback of a model's own code, which is in Triton's log as well.
TRACEBACK = "\n\nAt:\n"
MAX_MESSAGE_CHARS = 4096
# Parts of the messages of our runner and of Triton that identify the cause of a failed load.
FAILURE_PATTERNS = (
    ("out of memory: ", FailureReason.OUT_OF_MEMORY),
    ("failed warm-up request", FailureReason.WARMUP_FAILED),
    ("failed to run warmup sample", FailureReason.WARMUP_FAILED),
)
# Triton may start minutes after the agent, while its image is pulled: gRPC would by then look every two minutes.
CHANNEL_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Error messages travel in a header, and those of a model can be long.
    ("grpc.max_metadata_size", 1 << 20),
    ("grpc.absolute_max_metadata_size", 1 << 20),
]
# Exceptions of the client when the server ends during a call.
CONNECTION_ERRORS = (InferenceServerException, grpc.RpcError, OSError)


class ServerGoneError(Exception):
    """Triton ended or could not be reached in the middle of a call that changes something."""


@dataclass(frozen=True, slots=True)
class _Description:
    """What the server says of its ready versions: it changes with these, and when something is loaded."""

    model: str | None
    ready: Mapping[str, tuple[int, ...]]
    loads: int
    read_at_s: float
    digests: Mapping[str, str]
    backends: Mapping[str, str]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


class Triton:
    """Client of the pod's server."""

    def __init__(
        self, address: str, control_key: str, *, metrics: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Speak gRPC with `address` (host:port), and read the metrics page at `metrics` (host:port)."""
        self._client: Any = aio.InferenceServerClient(address, channel_args=CHANNEL_OPTIONS)
        self._headers = {CONTROL_HEADER: control_key}
        self._metrics_url = f"http://{metrics}/metrics"
        self._memory: MemoryByVersion = {}
        self._measured: Mapping[str, tuple[int, ...]] | None = None
        self._clock = clock
        self._loads = 0
        self._description: _Description | None = None

    async def close(self) -> None:
        """Close the channel."""
        await self._client.close()

    async def observe(self, model: str | None) -> ServerState:
        """Return the observed state; `inputs` and `outputs` are those of `model`. An unreachable server is not live."""
        try:
            index = await self._client.get_model_repository_index(
                headers=self._headers, as_json=True, client_timeout=RPC_TIMEOUT_S
            )
            ready = _ready_versions(index)
            described = await self._describe_models(model, ready)
        except CONNECTION_ERRORS:
            return ServerState()
        return ServerState(
            live=True,
            ready=ready,
            digests=described.digests,
            backends=described.backends,
            inputs=described.inputs,
            outputs=described.outputs,
            memory=await self._read_memory(ready),
        )

    async def _describe_models(self, model: str | None, ready: Mapping[str, tuple[int, ...]]) -> _Description:
        """Return the last description if nothing can have changed it, else ask the server: it is observed every second."""
        description, now_s = self._description, self._clock()
        if (
            description is not None
            and (description.model, description.ready, description.loads) == (model, ready, self._loads)
            and now_s - description.read_at_s < DESCRIBE_EVERY_S
        ):
            return description
        loads = self._loads
        configs = {name: await self._get_config(name) for name in ready}
        inputs, outputs = await self._get_signature(model) if model in ready else ((), ())
        digests = {name: _config_digest(config) for name, config in configs.items()}
        backends = {name: str(config.get("backend", "")) for name, config in configs.items()}
        self._description = _Description(model, ready, loads, now_s, digests, backends, inputs, outputs)
        return self._description

    async def load_version(
        self, model: str, version: int, config: ModelConfig, *, timeout_s: float
    ) -> VersionRefusal | None:
        """Load what `config` lists; return why `version` is not ready afterwards, None when it is.

        Raises:
            ServerGoneError: the server ended meanwhile.
        """
        self._loads += 1
        try:
            return await self._load_version(model, version, config, timeout_s)
        finally:
            self._loads += 1

    async def _load_version(
        self, model: str, version: int, config: ModelConfig, timeout_s: float
    ) -> VersionRefusal | None:
        deadline_s = self._clock() + timeout_s

        def remaining_s() -> float:
            return max(deadline_s - self._clock(), RPC_TIMEOUT_S)

        try:
            await self._client.load_model(
                model, headers=self._headers, config=json.dumps(config), client_timeout=timeout_s
            )
            # The two questions after a load may take longer on a busy node than ordinary requests.
            if await self._client.is_model_ready(model, str(version), client_timeout=remaining_s()):
                return None
            message = await self._find_load_error(model, version, remaining_s())
        except InferenceServerException as error:
            status = str(error.status() or "")
            if "UNAVAILABLE" in status:
                raise ServerGoneError(str(error.message())) from error
            if "DEADLINE_EXCEEDED" in status:
                message = f"no answer within {timeout_s:g} s; the server is still busy with it and takes no other load"
                return VersionRefusal(FailureReason.LOAD_TIMED_OUT, message)
            message = str(error.message()).strip()
        except (grpc.RpcError, OSError) as error:
            raise ServerGoneError(str(error)) from error
        missing = _missing_backend(message, config)
        if missing is not None:
            return VersionRefusal(FailureReason.BACKEND_MISSING, missing)
        message = message.split(TRACEBACK)[0][:MAX_MESSAGE_CHARS]
        reasons = (reason for pattern, reason in FAILURE_PATTERNS if pattern in message)
        return VersionRefusal(next(reasons, FailureReason.LOAD_FAILED), message)

    async def unload_model(self, model: str) -> None:
        """Unload every version of a model; one that is not loaded is no error."""
        self._loads += 1
        try:
            await self._client.unload_model(model, headers=self._headers, client_timeout=RPC_TIMEOUT_S)
        except CONNECTION_ERRORS as error:
            raise ServerGoneError(str(error)) from error
        finally:
            self._loads += 1

    async def is_ready(self, model: str) -> bool | None:
        """Return whether the server answers requests for `model` now; None if it does not answer in time."""
        try:
            return bool(await self._client.is_model_ready(model, client_timeout=READY_TIMEOUT_S))
        except InferenceServerException as error:
            return None if "DEADLINE_EXCEEDED" in str(error.status() or "") else False
        except (grpc.RpcError, OSError):
            return False

    async def request_count(self) -> int | None:
        """Return how many requests were answered or failed since the models were loaded; None without a server."""
        try:
            answer = await self._client.get_inference_statistics(as_json=True, client_timeout=RPC_TIMEOUT_S)
        except CONNECTION_ERRORS:
            return None
        stats = [entry.get("inference_stats", {}) for entry in answer.get("model_stats", [])]
        return sum(
            int(entry.get(kind, {}).get("count", 0)) for entry in stats for kind in ("success", "fail")
        )

    async def _read_memory(self, ready: Mapping[str, tuple[int, ...]]) -> MemoryByVersion:
        """Return the memory of the ready versions; they are measured at load, so read again only when the set changes."""
        if ready != self._measured:
            memory = await read_memory(self._metrics_url)
            self._memory, self._measured = (memory or {}), (ready if memory is not None else None)
        return self._memory

    async def _get_config(self, model: str) -> Mapping[str, Any]:
        answer = await self._client.get_model_config(model, as_json=True, client_timeout=RPC_TIMEOUT_S)
        return dict(answer.get("config", {}))

    async def _get_signature(
        self, model: str | None
    ) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
        answer = await self._client.get_model_metadata(model, as_json=True, client_timeout=RPC_TIMEOUT_S)
        return _parse_specs(answer.get("inputs", [])), _parse_specs(answer.get("outputs", []))

    async def _find_load_error(self, model: str, version: int, timeout_s: float) -> str:
        index = await self._client.get_model_repository_index(
            headers=self._headers, as_json=True, client_timeout=timeout_s
        )
        for entry in index.get("models", []):
            if entry.get("name") == model and entry.get("version") == str(version) and entry.get("reason"):
                return str(entry["reason"]).strip()
        return "the server loaded the model without this version and gives no reason"


def _missing_backend(message: str, config: ModelConfig) -> str | None:
    """Return the message for a server without the backend or platform of `config`; None for any other error."""
    if NO_BACKEND in message:
        problem = f"has no backend {config['backend']!r}"
    elif NO_PLATFORM in message and config.get("platform") in NEWER_PLATFORMS:
        problem = f"does not know platform {config['platform']!r} of backend {config['backend']!r}"
    else:
        return None
    return (
        f"the server in this pod {problem} ({message}); export the model to ONNX, or have Tidegate run a Triton image that "
        "has it (images.triton in the chart's values)"
    )


def _ready_versions(index: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    ready: dict[str, tuple[int, ...]] = {}
    for entry in index.get("models", []):
        if entry.get("state") == "READY" and str(entry.get("version", "")).isdigit():
            ready[entry["name"]] = tuple(sorted((*ready.get(entry["name"], ()), int(entry["version"]))))
    return ready


def _config_digest(config: Mapping[str, Any]) -> str:
    return str(config.get("parameters", {}).get(CONFIG_DIGEST, {}).get("string_value", ""))


def _parse_specs(tensors: list[Mapping[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(
            name=tensor["name"],
            dtype=tensor["datatype"],
            shape=tuple(int(size) for size in tensor.get("shape", [])),
        )
        for tensor in tensors
    )
