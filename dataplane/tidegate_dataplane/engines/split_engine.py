"""Answer requests of one shape: ONNX Runtime computes the lookups, and a compiled network what is made of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped]  # publishes no types

from tidegate_dataplane.batching.arrays import Array


class UnfitRequestError(Exception):
    """A request that the network would not answer like the model: a number in it is not finite."""


class Network(Protocol):
    """What an engine compiled for one shape."""

    inputs: Mapping[str, Array]
    """The arrays that it reads, by name."""

    def compute_outputs(self) -> list[Array]:
        """Return its outputs for what its arrays have."""
        ...


class Lookups:
    """The part of a graph that ONNX Runtime computes, whatever the shape."""

    def __init__(self, graph: bytes, threads: int) -> None:
        """Open the session; ONNX Runtime raises its own errors."""
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 4
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session: Any = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        self.inputs = tuple(str(value.name) for value in inputs)
        self.outputs = tuple(str(value.name) for value in outputs)
        # ONNX Runtime has no binding for strings.
        self._binds_arrays = all(value.type != "tensor(string)" for value in (*inputs, *outputs))

    def run_request(self, request: Mapping[str, Array]) -> dict[str, Array]:
        """Return the results by name; ONNX Runtime raises its own errors."""
        results = self._session.run(self.outputs, {name: request[name] for name in self.inputs})
        return dict(zip(self.outputs, results, strict=True))

    def bind_results(self, arrays: Mapping[str, Array]) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
        """Return a function that writes the results of a request into `arrays`, and returns those that have no array.

        It raises errors of ONNX Runtime's own, also for a result that does not have the shape of its array.
        """
        unbound = [name for name in self.outputs if name not in arrays]
        binding = self._session.io_binding()

        def run_bound(request: Mapping[str, Array]) -> dict[str, Array]:
            # They must exist while the session reads them.
            inputs = [np.ascontiguousarray(request[name]) for name in self.inputs]
            for name, array in zip(self.inputs, inputs, strict=True):
                binding.bind_cpu_input(name, array)
            # Otherwise they would keep the arrays of the last request, and its shapes.
            for name in unbound:
                binding.bind_output(name)
            self._session.run_with_iobinding(binding)
            values = binding.get_outputs()[len(self.outputs) - len(unbound) :] if unbound else ()
            return {name: value.numpy() for name, value in zip(unbound, values, strict=True)}

        def run_copied(request: Mapping[str, Array]) -> dict[str, Array]:
            results = self.run_request(request)
            for name, array in arrays.items():
                copy_array(array, results.pop(name))
            return results

        if not self._binds_arrays:
            return run_copied
        for name, array in arrays.items():
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        return run_bound


class SplitEngine:
    """The lookups and the network of one bucket; ONNX Runtime writes into the arrays that the network reads."""

    def __init__(
        self, lookups: Lookups | None, network: Network, *, checked: Sequence[str], outputs: Sequence[str]
    ) -> None:
        """`checked` are the inputs of the network that may not be finite, `outputs` those of the model in its order."""
        arrays, results = network.inputs, () if lookups is None else lookups.outputs
        self._network, self._outputs = network, outputs
        self._checked_inputs = [arrays[name] for name in checked if name not in results]
        self._checked_results = [arrays[name] for name in checked if name in results]
        self._copied = [(name, array) for name, array in arrays.items() if name not in results]
        looked_up = {name: array for name, array in arrays.items() if name in results}
        self._look_up = None if lookups is None else lookups.bind_results(looked_up)
        self._computed = [name for name in outputs if name not in results]
        self._returned = {name: array for name, array in looked_up.items() if name in outputs}

    def run_request(self, inputs: Mapping[str, Array]) -> list[Array]:
        """Return the outputs in the model's order.

        Raise UnfitRequestError for what the network must not see; ONNX Runtime and the engine raise errors of their own.
        """
        for name, array in self._copied:
            copy_array(array, inputs[name])
        # Before the lookups, which the model computes again for such a request.
        _check_finite(self._checked_inputs)
        results = {} if self._look_up is None else self._look_up(inputs)
        _check_finite(self._checked_results)
        # The next request is written into the same memory.
        results.update((name, array.copy()) for name, array in self._returned.items())
        results.update(zip(self._computed, self._network.compute_outputs(), strict=True))
        return [results[name] for name in self._outputs]


def list_network_names(
    inputs: Sequence[str], outputs: Sequence[str], lookups: Lookups | None
) -> tuple[Sequence[str], Sequence[str]]:
    """Return what a network may read, and what it computes, of a model with these inputs and outputs."""
    results = () if lookups is None else lookups.outputs
    return (*inputs, *results), [name for name in outputs if name not in results]


def _check_finite(arrays: Sequence[Array]) -> None:
    if not all(np.isfinite(array).all() for array in arrays):
        raise UnfitRequestError


def copy_array(target: Array, source: Array) -> None:
    """Copy an array of the same shape and type; raise ValueError for another one, which NumPy would repeat or convert."""
    if source.shape != target.shape or source.dtype != target.dtype:
        message = f"the engine takes {target.dtype} {target.shape}, and not {source.dtype} {source.shape}"
        raise ValueError(message)
    target[...] = source
