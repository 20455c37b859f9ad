"""Serve the ONNX model beside this file with ONNX Runtime on CPU, for servers without that backend.

This file is copied into version folders together with the packages that log samples and join requests.
If the model is batched, requests that Triton passes together are joined along the first dimension and run once;
an error is returned to the request that caused it.
"""

# The backend uses asyncio for every answer; if the backend imported it, the first request would take 25 ms longer.
import asyncio  # noqa: F401  # pyright: ignore[reportUnusedImport]
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort  # type: ignore[import-untyped]  # publishes no types
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]  # lives in the server

Array = npt.NDArray[Any]
THREADS_PARAMETER = "intra_op_thread_count"
WARM_UP_PARAMETER = "tidegate_warmup_requests"
CHECKED_JOINS_PARAMETER = "tidegate_checked_joins"
SHARED_INPUTS_PARAMETER = "tidegate_shared_inputs"
MAX_ROWS_PARAMETER = "tidegate_max_rows"


class TritonPythonModel:
    """One version of one model, with the interface of Triton's Python backend."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the session and warm it up; errors in the model are raised here, as ONNX Runtime's own."""
        if int(np.__version__.split(".")[0]) >= 2:
            # With NumPy 2, as_numpy() returns empty arrays, without an error.
            raise pb_utils.TritonModelException(
                f"NumPy {np.__version__} in the server's environment: needs numpy<2"
            )
        _import_package(args)
        from tidegate_dataplane.runner_interface import ENGINE_PARAMETER, count_instances
        from tidegate_dataplane.sampling.memory import VersionTooLargeError, limit_memory

        config = json.loads(args["model_config"])
        instances = count_instances(config)
        self._batched = int(config.get("max_batch_size", 0)) > 0
        # With shared inputs, rows are a dimension like others for Triton.
        self._max_rows = int(_read_parameter(config, MAX_ROWS_PARAMETER) or config.get("max_batch_size", 0))
        self._texts = {tensor["name"] for tensor in config["input"] if tensor["data_type"] == "TYPE_STRING"}
        self._outputs = [tensor["name"] for tensor in config["output"]]
        self._inputs = [tensor["name"] for tensor in config["input"]]
        options = ort.SessionOptions()
        options.intra_op_num_threads = _count_threads(config, instances)
        options.inter_op_num_threads = 1
        # Spinning threads would burn the pod's CPU share between requests.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        path = Path(args["model_repository"]) / args["model_version"] / "served.onnx"
        try:
            with limit_memory(instances, has_engines=bool(_read_parameter(config, ENGINE_PARAMETER))):
                self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
                self._types = {value.name: value.type for value in self._session.get_inputs()}
                self._run_zeros_once(config)
                self._warm_up(config)
        except VersionTooLargeError as error:
            raise pb_utils.TritonModelException(str(error)) from None
        self._shared = self._make_shared_inputs(config)
        self._engines = self._start_engines(args, config, instances)
        self._joiner = self._make_joiner(config)
        self._watchdog, self._sampler = _start_watching(args, self._joiner.find_limit() or "")
        self._keeper = _make_keeper(args)
        self._memory = _export_memory(args["model_name"], args["model_version"], instances)
        self._counters = self._start_counting(args["model_name"], args["model_version"])

    def finalize(self) -> None:
        """Stop the watchdog, and send the remaining samples."""
        self._watchdog.stop_watching()
        if self._engines is not None:
            self._engines.stop_loading()
        if self._keeper is not None:
            self._keeper.finish_writing()
        self._counters.stop_exporting()
        self._sampler.finish_sending()

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer each request, in order."""
        with self._watchdog.watch_request(self._count_strings(requests)):
            return self._answer_requests(requests)

    def _answer_requests(self, requests: Sequence[Any]) -> list[Any]:
        inputs = [self._read_inputs(request) for request in requests]
        if self._shared.names:
            answers = [self._answer_shared(arrays) for arrays in inputs]
        else:
            answers = self._joiner.answer_requests(inputs)
        if self._keeper is not None:
            for arrays, answer in zip(inputs, answers, strict=True):
                if not _is_refused(answer):
                    self._keeper.offer_request(arrays)
        self._counters.export_soon()
        self._sampler.report_join_limit(self._joiner.find_limit() or "")
        if self._sampler.is_active:
            for request, arrays, answer in zip(requests, inputs, answers, strict=True):
                if not isinstance(answer, Exception):
                    self._offer_sample(request.request_id(), arrays, answer)
        return [
            self._make_response(answer, request.requested_output_names())
            for request, answer in zip(requests, answers, strict=True)
        ]

    def _make_joiner(self, config: dict[str, Any]) -> Any:
        from tidegate_dataplane.batching.request_joiner import JoinMode, RequestJoiner

        checked = _read_parameter(config, CHECKED_JOINS_PARAMETER) == "true"
        mode = JoinMode.NONE if not self._batched else JoinMode.CHECKED if checked else JoinMode.TRUSTED
        execute = self._run_session if self._engines is None else self._engines.router.answer_request
        return RequestJoiner(execute, mode, self._run_session)

    def _start_engines(self, args: dict[str, str], config: dict[str, Any], instances: int) -> Any:
        """Return what sends requests to compiled engines; None if none are ordered."""
        from tidegate_dataplane.engines.engine_loader import RunnerFacts, start_engines
        from tidegate_dataplane.runner_interface import ENGINE_PARAMETER
        from tidegate_dataplane.sampling.memory import read_free_memory, read_private_bytes

        # Of a model without rows, the first dimension is one like others and not padded.
        free_dims = {
            model_input.name: [
                isinstance(size, str | None) and (axis > 0 or self._max_rows > 0)
                for axis, size in enumerate(model_input.shape)
            ]
            for model_input in self._session.get_inputs()
        }
        facts = RunnerFacts(
            name=args.get("model_instance_name", "0"),
            outputs=self._outputs,
            threads=_count_threads(config, instances),
            free_bytes=lambda: (read_free_memory() or (None, None))[0],
            instances=instances,
            version_bytes=read_private_bytes() * instances,
        )
        folder = Path(args["model_repository"]) / args["model_version"]
        parameter = _read_parameter(config, ENGINE_PARAMETER)
        return start_engines(folder, parameter, free_dims, self._run_session, facts)

    def _make_shared_inputs(self, config: dict[str, Any]) -> Any:
        """Return the function that prepares requests with shared inputs; a model may have none."""
        from tidegate_dataplane.batching.shared_inputs import SharedInputs
        from tidegate_dataplane.runner_interface import SHARED_ROWS

        names = json.loads(_read_parameter(config, SHARED_INPUTS_PARAMETER) or "[]")
        single = {
            model_input.name
            for model_input in self._session.get_inputs()
            if model_input.shape and model_input.shape[0] == SHARED_ROWS
        }
        return SharedInputs(names, single, self._max_rows)

    def _answer_shared(self, arrays: Mapping[str, Array]) -> list[Array] | Exception:
        from tidegate_dataplane.batching.shared_inputs import RowsError

        try:
            request = self._shared.prepare_request(arrays)
        except RowsError as error:
            return error
        answer: list[Array] | Exception
        [answer] = self._joiner.answer_requests([request.inputs])
        if not isinstance(answer, Exception):
            self._shared.count_answer(request)
        return answer

    def _start_counting(self, model: str, version: str) -> Any:
        """Return the counters of what became of this version's requests."""
        from tidegate_dataplane.engines.engine_loader import NO_COUNTS
        from tidegate_dataplane.runner_interface import HELP_TEXTS, PREFIX
        from tidegate_dataplane.sampling.server_counters import ServerCounters

        def read_totals() -> Iterator[tuple[str, dict[str, str], int]]:
            engines = NO_COUNTS if self._engines is None else self._engines.read_counters()
            counts = {**self._joiner.read_counters(), **self._shared.read_counters(), **engines}
            for (name, way), count in counts.items():
                yield PREFIX + name, {"version": version, **({"way": way} if way else {})}, count

        families = {PREFIX + name: text for name, text in HELP_TEXTS.items()}
        counters = ServerCounters(pb_utils.MetricFamily, model, families, read_totals)
        # All of them from zero on, so that the first increase is seen.
        counters.export_soon()
        return counters

    def _offer_sample(self, request_id: str, inputs: dict[str, Array], answer: list[Array]) -> None:
        try:
            self._sampler.offer_sample(request_id, inputs, dict(zip(self._outputs, answer, strict=True)))
        except Exception as error:  # noqa: BLE001 - no error of a sample may fail the answer
            pb_utils.Logger.log_warn(f"a sample could not be taken: {error!r}")

    def _run_zeros_once(self, config: dict[str, Any]) -> None:
        """Run zeros once, so that the first request does not pay for ONNX Runtime's first allocations."""
        shapes = self._input_shapes(config, rows=1)
        if all(size > 0 for shape in shapes.values() for size in shape):
            # A model may refuse zeros, which is no error unless the order has warm-up requests.
            self._run_zeros(shapes)

    def _warm_up(self, config: dict[str, Any]) -> None:
        """Run the ordered number of warm-up requests of zeros, alternately with one row and with the maximum."""
        requests = int(_read_parameter(config, WARM_UP_PARAMETER) or "0")
        max_rows = self._max_rows or 1
        for number in range(requests):
            rows = max_rows if number % 2 else 1
            shapes = {
                name: [max(size, 1) for size in shape]
                for name, shape in self._input_shapes(config, rows).items()
            }
            answer = self._run_zeros(shapes)
            if isinstance(answer, Exception):
                raise pb_utils.TritonModelException(
                    f"failed warm-up request {number + 1} of {requests}, zeros of shape {shapes}: {answer}"
                )

    def _input_shapes(self, config: dict[str, Any], rows: int) -> dict[str, list[int]]:
        shapes = {
            tensor["name"]: [
                int(size) for size in tensor.get("reshape", {"shape": tensor["dims"]}).get("shape", [])
            ]
            for tensor in config["input"]
        }
        if not self._max_rows:
            return shapes
        return {name: [rows, *(shape if self._batched else shape[1:])] for name, shape in shapes.items()}

    def _run_zeros(self, shapes: dict[str, list[int]]) -> list[Array] | Exception:
        from tidegate_dataplane.sampling.memory import is_out_of_memory

        types = self._types
        answer = self._run_session(
            {name: _make_zeros(types[name], shape) for name, shape in shapes.items() if name in types}
        )
        if isinstance(answer, Exception) and is_out_of_memory(answer):
            raise answer
        return answer

    def _count_strings(self, requests: Sequence[Any]) -> int:
        return sum(
            math.prod(pb_utils.get_input_tensor_by_name(request, name).shape())
            for request in requests
            for name in self._texts
        )

    def _read_inputs(self, request: Any) -> dict[str, Array]:
        tensors = {tensor.name(): tensor for tensor in request.inputs()}
        return {name: self._read_input(tensors[name], name) for name in self._inputs}

    def _read_input(self, tensor: Any, name: str) -> Array:
        array: Array = tensor.as_numpy()
        if name not in self._texts:
            return array
        texts = [value.decode(errors="replace") for value in array.reshape(-1).tolist()]
        return np.array(texts, dtype=object).reshape(array.shape)

    def _run_session(self, arrays: Mapping[str, Array]) -> list[Array] | Exception:
        try:
            return [np.asarray(output) for output in self._session.run(self._outputs, dict(arrays))]
        except Exception as error:  # noqa: BLE001 - ONNX Runtime raises a dozen unrelated types
            return error

    def _make_response(self, answer: list[Array] | Exception, requested: Sequence[str]) -> Any:
        if isinstance(answer, Exception):
            # Faults of the model are internal: clients' own must not count against the pod.
            code = pb_utils.TritonError.INVALID_ARG if _is_refused(answer) else pb_utils.TritonError.INTERNAL
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(answer), code))
        requested_names = set(requested)
        tensors = [
            pb_utils.Tensor(name, _encode_array(array))
            for name, array in zip(self._outputs, answer, strict=True)
            if name in requested_names
        ]
        return pb_utils.InferenceResponse(tensors)


def _import_package(args: dict[str, str]) -> None:
    """Make the package in this version's folder importable."""
    sys.path.insert(0, str(Path(args["model_repository"]) / args["model_version"]))
    # Bytecode would change the time of the folder, which the server takes for a new version.
    sys.dont_write_bytecode = True


def _start_watching(args: dict[str, str], join_limit: str) -> tuple[Any, Any]:
    """Start the watchdog of this process and the sampler of this version, from the package in its folder."""
    from tidegate_dataplane.sampling.sampler import Sampler
    from tidegate_dataplane.sampling.watchdog import Watchdog

    watchdog, sampler = Watchdog.start_watching(), Sampler.from_args(args)
    sampler.report_join_limit(join_limit)
    sampler.start()
    return watchdog, sampler


def _is_refused(answer: list[Array] | Exception) -> bool:
    """Return whether a request was refused before the model got it."""
    from tidegate_dataplane.batching.shared_inputs import RowsError

    return isinstance(answer, RowsError)


def _make_keeper(args: dict[str, str]) -> Any:
    """Return what keeps requests for the compiler; None if the version has no folder for it."""
    from tidegate_dataplane.runner_interface import find_compile_folder
    from tidegate_dataplane.sampling.kept_requests import RequestKeeper

    folder = find_compile_folder(Path(args["model_repository"]) / args["model_version"])
    return None if folder is None else RequestKeeper(folder, args.get("model_instance_name", "0"))


def _export_memory(model: str, version: str, instances: int) -> Any:
    """Export the memory of this version's processes as a metric of the server, which the agent reads.

    Only private memory counts: files and libraries are shared with the other versions. All processes export the same number.
    """
    from tidegate_dataplane.sampling.memory import read_private_bytes

    try:
        family = pb_utils.MetricFamily(
            name="tidegate_model_memory_bytes",
            description="Private memory of the version's processes once it was loaded.",
            kind=pb_utils.MetricFamily.GAUGE,
        )
        metric = family.Metric(labels={"model": model, "version": version})
        metric.set(read_private_bytes() * instances)
    except Exception:  # noqa: BLE001 - a server without metrics still serves
        return None
    return family, metric


def _read_parameter(config: dict[str, Any], name: str) -> str:
    """Return a parameter of the model's configuration; empty if it has none of this name."""
    value: str = config.get("parameters", {}).get(name, {}).get("string_value", "")
    return value


def _make_zeros(onnx_type: str, shape: Sequence[int]) -> Array:
    """Return zeros (or empty strings) of an ONNX Runtime type, such as `tensor(float)`."""
    name = onnx_type.removeprefix("tensor(").removesuffix(")")
    if name == "string":
        return np.full(shape, "", dtype=object)
    numpy_name = {"float": "float32", "double": "float64"}.get(name, name)
    return np.zeros(shape, dtype=numpy_name if numpy_name in np.sctypeDict else "float32")


def _encode_array(array: Array) -> Array:
    """Return the array as Triton expects it: strings as bytes, contiguous memory."""
    if array.dtype.kind in "OU":
        texts = [value.encode() if isinstance(value, str) else value for value in array.reshape(-1).tolist()]
        return np.array(texts, dtype=np.object_).reshape(array.shape)
    return np.ascontiguousarray(array)


def _count_threads(config: dict[str, Any], instances: int) -> int:
    """Return the threads of one execution: the configured number, else this process's share of the pod's CPU request."""
    configured = _read_parameter(config, THREADS_PARAMETER)
    if configured:
        return max(int(configured), 1)
    cpu = os.environ.get("TIDEGATE_CPU", "1")
    try:
        cpus = float(cpu[:-1]) / 1000 if cpu.endswith("m") else float(cpu)
    except ValueError:
        return 1
    return max(math.ceil(cpus / instances), 1)
