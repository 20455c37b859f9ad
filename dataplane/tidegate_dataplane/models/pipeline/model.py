"""Serves a pipeline's plan: requests that Triton hands over together are one call of each model behind the gateway.

This file, the package that does the work and the plan are copied into a version folder together.
An instance waits for the answers to its batch; the configuration asks for several, so that the next need not.
"""

# The backend asks asyncio of every answer whether it is a coroutine; imported by it, with the first request, it costs that 25 ms.
import asyncio  # noqa: F401  # pyright: ignore[reportUnusedImport]
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]  # lives in the server


class TritonPythonModel:
    """One plan, as Triton's Python backend wants it."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the plan; nothing is called before the first request."""
        if int(np.__version__.split(".")[0]) >= 2:
            # There as_numpy() hands out empty arrays, without an error.
            raise pb_utils.TritonModelException(
                f"NumPy {np.__version__} in the server's environment: needs numpy<2"
            )
        folder = Path(args["model_repository"]) / args["model_version"]
        sys.path.insert(0, str(folder))
        # The server takes a folder whose time changed for a changed version.
        sys.dont_write_bytecode = True
        from tidegate_dataplane.contract import PipelinePlan
        from tidegate_dataplane.pipeline.counters import FAMILIES, totals
        from tidegate_dataplane.pipeline.failures import CallError, FailureKind
        from tidegate_dataplane.pipeline.pipeline import Pipeline
        from tidegate_dataplane.sampling.sampler import Sampler
        from tidegate_dataplane.sampling.watchdog import Watchdog

        plan = PipelinePlan.model_validate(json.loads((folder / "pipeline.json").read_text()))
        self._inputs = [spec.name for spec in plan.inputs]
        name = args["model_name"]

        def say(words: str) -> None:
            pb_utils.Logger.log_warn(f"pipeline {name}: {words}")

        self._pipeline = Pipeline(plan, say)
        self._error_type = CallError
        error = pb_utils.TritonError
        self._codes = {
            FailureKind.REFUSED: error.INVALID_ARG,
            FailureKind.FAILED: error.INTERNAL,
            # There is no code for a deadline; both say that trying again may help.
            FailureKind.UNAVAILABLE: error.UNAVAILABLE,
            FailureKind.TIMED_OUT: error.UNAVAILABLE,
        }
        self._counters = _Counters(name, FAMILIES)
        self._totals = totals
        self._watchdog = Watchdog.started()
        # Nothing is sampled here; it is how the agent notices when this process ends.
        self._sampler = Sampler.of(args)
        self._sampler.start()

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer each request, in order."""
        with self._watchdog.answering():
            return self._answers(requests)

    def _answers(self, requests: Sequence[Any]) -> list[Any]:
        batch = [
            {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self._inputs}
            for request in requests
        ]
        answers = self._pipeline.answer(batch)
        self._counters.follow(self._totals(self._pipeline))
        return [
            self._response(answer, request.requested_output_names())
            for request, answer in zip(requests, answers, strict=True)
        ]

    def finalize(self) -> None:
        """End the connections, and say goodbye to the agent."""
        self._watchdog.stop()
        self._pipeline.close()
        self._sampler.finish()

    def _response(self, answer: Any, wanted: Sequence[str]) -> Any:
        if isinstance(answer, self._error_type):
            error = pb_utils.TritonError(str(answer), self._codes[answer.kind])
            return pb_utils.InferenceResponse(error=error)
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor(name, array if array.dtype == object else np.ascontiguousarray(array))
                for name, array in answer.items()
                if name in wanted
            ]
        )


class _Counters:
    """What the pipeline has done, among the server's metrics; instances add up there."""

    def __init__(self, model: str, families: Mapping[str, str]) -> None:
        self._model = model
        self._families: dict[str, Any] = {}
        self._metrics: dict[tuple[str, ...], Any] = {}
        self._seen: dict[tuple[str, ...], int] = {}
        try:
            for name, description in families.items():
                self._families[name] = pb_utils.MetricFamily(
                    name=name, description=description, kind=pb_utils.MetricFamily.COUNTER
                )
        except Exception:  # noqa: BLE001 - a server without metrics serves all the same
            self._families = {}

    def follow(self, totals: Iterable[tuple[str, Mapping[str, str], int]]) -> None:
        """Add what was done since the last time."""
        if not self._families:
            return
        for family, labels, total in totals:
            key = (family, *labels.values())
            if key not in self._metrics:
                self._metrics[key] = self._families[family].Metric(labels={"model": self._model, **labels})
            more = total - self._seen.get(key, 0)
            self._seen[key] = total
            if more:
                self._metrics[key].increment(more)
