"""Serve a feature plan with the engine beside this file: entity keys in, features out.

This file, the engine and the plan are copied into a version folder together.
Requests that Triton passes together are computed together.
"""

# The backend uses asyncio for every answer; if the backend imported it, the first request would take 25 ms longer.
import asyncio  # noqa: F401  # pyright: ignore[reportUnusedImport]
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]  # lives in the server

Array = npt.NDArray[Any]


class TritonPythonModel:
    """One plan, with the interface of Triton's Python backend."""

    def initialize(self, args: dict[str, str]) -> None:
        """Read the plan, map its tables, and open the events of its streams.

        Raises:
            TritonModelException: they do not fit; the message is the engine's.
        """
        if int(np.__version__.split(".")[0]) >= 2:
            # With NumPy 2, as_numpy() returns empty arrays, without an error.
            raise pb_utils.TritonModelException(
                f"NumPy {np.__version__} in the server's environment: needs numpy<2"
            )
        folder = Path(args["model_repository"]) / args["model_version"]
        sys.path.insert(0, str(folder))
        from tidegate_dataplane.contract import AS_OF, NOT_CURRENT, FeaturePlan
        from tidegate_dataplane.features.engine import FeatureEngine
        from tidegate_dataplane.features.errors import FeatureError
        from tidegate_dataplane.runner_interface import count_instances
        from tidegate_dataplane.sampling.sampler import Sampler
        from tidegate_dataplane.sampling.watchdog import Watchdog

        plan = FeaturePlan.model_validate(json.loads((folder / "plan.json").read_bytes()))
        self._inputs = [spec.name for spec in plan.inputs]
        self._time_input = AS_OF if plan.streams else None
        self._mark = NOT_CURRENT
        instances = count_instances(json.loads(args["model_config"]))
        self._events = _open_events(plan, Path(args["model_repository"]).parent, instances)
        self._store_counters = (
            None
            if plan.store is None or not plan.streams
            else _start_counting(args["model_name"], self._events)
        )
        try:
            self._engine = FeatureEngine.from_files(
                plan,
                {table.name: folder / "tables" / f"{table.name}.table" for table in plan.tables},
                self._events,
                instances,
            )
        except FeatureError as error:
            raise pb_utils.TritonModelException(str(error)) from error
        self._watchdog = Watchdog.start_watching()
        # Features are not sampled; by this connection the agent notices when the process ends.
        self._sampler = Sampler.from_args(args)
        self._sampler.start()

    def finalize(self) -> None:
        """Tell the agent that the version was unloaded."""
        self._watchdog.stop_watching()
        if self._store_counters is not None:
            self._store_counters.stop_exporting()
            self._events.close_connection()
        self._sampler.finish_sending()

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer each request, in order."""
        with self._watchdog.watch_request():
            return self._answer_requests(requests)

    def _answer_requests(self, requests: Sequence[Any]) -> list[Any]:
        inputs = [
            {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self._inputs}
            for request in requests
        ]
        rows = [len(next(iter(arrays.values()))) for arrays in inputs]
        if self._time_input is not None:
            now_ms = int(time.time() * 1000)
            for request, arrays, count in zip(requests, inputs, rows, strict=True):
                given = pb_utils.get_input_tensor_by_name(request, self._time_input)
                arrays[self._time_input] = np.full(count, now_ms) if given is None else given.as_numpy()[:, 0]
        joined = inputs[0]
        if len(inputs) > 1:
            joined = {name: np.concatenate([arrays[name] for arrays in inputs]) for name in inputs[0]}
        computed = {
            name: np.ascontiguousarray(values)
            for name, values in self._engine.compute_features(joined).items()
        }
        if self._store_counters is not None:
            mark = ",".join(self._events.not_current).encode()
            computed[self._mark] = np.full((sum(rows), 1), mark, dtype=object)
            self._store_counters.export_soon()
        ends = list(accumulate(rows))
        # The names are a set, whose order differs between processes: answers have the plan's.
        requested = [set(request.requested_output_names()) for request in requests]
        return [
            pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor(name, values[end - count : end])
                    for name, values in computed.items()
                    if name in names
                ]
            )
            for names, count, end in zip(requested, rows, ends, strict=True)
        ]


def _start_counting(model: str, reader: Any) -> Any:
    """Return the counters of how the store answers `reader`."""
    from tidegate_dataplane.contract.exported import STORE_FAILURES, STORE_KEYS
    from tidegate_dataplane.sampling.server_counters import ServerCounters

    def read_totals() -> Iterator[tuple[str, dict[str, str], int]]:
        for origin, count in reader.key_counts.items():
            yield STORE_KEYS.name, {"origin": origin}, count
        yield STORE_FAILURES.name, {}, reader.failures

    families = {metric.name: metric.help_text for metric in (STORE_KEYS, STORE_FAILURES)}
    counters = ServerCounters(pb_utils.MetricFamily, model, families, read_totals)
    # All of them from zero on, so that the first increase is seen.
    counters.export_soon()
    return counters


def _open_events(plan: Any, repository: Path, instances: int) -> Any:
    """Return the events of the streams in the store; a plan without streams, or with a Redis, needs no LMDB."""
    if not plan.streams:
        return {}
    if plan.store is not None:
        from tidegate_dataplane.event_store.redis_client import RedisAccess
        from tidegate_dataplane.features.redis_events import RedisEventReader

        secret_dir = Path(os.environ.get("TIDEGATE_FEATURES_STORE_SECRET_DIR", "/etc/tidegate-store"))
        # For tests only.
        loopback = os.environ.get("TIDEGATE_FEATURES_ALLOW_LOOPBACK") == "true"
        access = RedisAccess(plan.store, secret_dir, allow_loopback=loopback)
        return RedisEventReader(plan, access, instances=instances)
    from tidegate_dataplane.event_store import EVENTS_FOLDER
    from tidegate_dataplane.features.stored_events import open_stored_events

    return dict(open_stored_events(plan, repository.parent / EVENTS_FOLDER))
