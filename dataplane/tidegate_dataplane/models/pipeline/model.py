"""Serve a pipeline's plan: requests that Triton passes together become one call of each model behind the gateway.

This file, the package of the pipeline and the plan are copied into a version folder together.
An instance waits for the answers to its batch, so the configuration has several instances.
"""

# The backend uses asyncio for every answer; if the backend imported it, the first request would take 25 ms longer.
import asyncio  # noqa: F401  # pyright: ignore[reportUnusedImport]
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]  # lives in the server


class TritonPythonModel:
    """One plan, with the interface of Triton's Python backend."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the plan, without calling a model before the first request."""
        if int(np.__version__.split(".")[0]) >= 2:
            # With NumPy 2, as_numpy() returns empty arrays, without an error.
            raise pb_utils.TritonModelException(
                f"NumPy {np.__version__} in the server's environment: needs numpy<2"
            )
        folder = Path(args["model_repository"]) / args["model_version"]
        sys.path.insert(0, str(folder))
        # Bytecode would change the time of the folder, which the server takes for a new version.
        sys.dont_write_bytecode = True
        from tidegate_dataplane.contract import CANDIDATES_HEADER, PipelinePlan
        from tidegate_dataplane.contract.exported import PIPELINE
        from tidegate_dataplane.pipeline.failures import CallError, FailureKind
        from tidegate_dataplane.pipeline.pipeline import PipelineRunner
        from tidegate_dataplane.sampling.sampler import Sampler
        from tidegate_dataplane.sampling.server_counters import ServerCounters
        from tidegate_dataplane.sampling.watchdog import Watchdog

        plan = PipelinePlan.model_validate(json.loads((folder / "pipeline.json").read_bytes()))
        self._has_cut = any(part.cut is not None for part in plan.parts)
        self._header = CANDIDATES_HEADER
        self._shortened_by_header = plan.shortened_by_header
        self._inputs = [spec.name for spec in plan.inputs]
        name = args["model_name"]

        def warn(message: str) -> None:
            pb_utils.Logger.log_warn(f"pipeline {name}: {message}")

        self._pipeline = PipelineRunner(plan, warn)
        self._error_type = CallError
        error = pb_utils.TritonError
        self._codes = {
            FailureKind.REFUSED: error.INVALID_ARG,
            FailureKind.FAILED: error.INTERNAL,
            # Triton has no code for a deadline; both errors are retryable.
            FailureKind.UNAVAILABLE: error.UNAVAILABLE,
            FailureKind.TIMED_OUT: error.UNAVAILABLE,
        }
        self._counters = ServerCounters(
            pb_utils.MetricFamily,
            name,
            {metric.name: metric.help_text for metric in PIPELINE},
            self._pipeline.read_totals,
        )
        self._watchdog = Watchdog.start_watching()
        # Pipelines are not sampled; by this connection the agent notices when the process ends.
        self._sampler = Sampler.from_args(args)
        self._sampler.start()

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer each request, in order."""
        with self._watchdog.watch_request():
            return self._answer_requests(requests)

    def _answer_requests(self, requests: Sequence[Any]) -> list[Any]:
        batch = [
            {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self._inputs}
            for request in requests
        ]
        answers = self._pipeline.answer_requests(
            batch, [self._find_shortened(request) for request in requests]
        )
        self._counters.export_soon()
        return [
            self._make_response(answer, request.requested_output_names())
            for request, answer in zip(requests, answers, strict=True)
        ]

    def _find_shortened(self, request: Any) -> frozenset[str]:
        """Return the parts that get the fewest rows, by the header, which the server passes on where the plan has a cut."""
        if not self._has_cut:
            return frozenset()
        header = json.loads(request.parameters() or "{}").get(self._header)
        return self._shortened_by_header.get(header, frozenset())

    def finalize(self) -> None:
        """Close the connections, and tell the agent that the version was unloaded."""
        self._watchdog.stop_watching()
        self._counters.stop_exporting()
        self._pipeline.close()
        self._sampler.finish_sending()

    def _make_response(self, answer: Any, requested_names: Sequence[str]) -> Any:
        if isinstance(answer, self._error_type):
            error = pb_utils.TritonError(str(answer), self._codes[answer.kind])
            return pb_utils.InferenceResponse(error=error)
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor(name, array if array.dtype == object else np.ascontiguousarray(array))
                for name, array in answer.items()
                if name in requested_names
            ]
        )
