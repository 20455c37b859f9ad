"""Which of the Inferences that a ModelAccess names can be used, and what is said about the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess, Route
from tidegate.api.reasons import Reason
from tidegate.routing.fleet import Backend, BackendKey, BackendKind
from tidegate.routing.refusals import Refusal


def backend_key(access: ModelAccess, inference: str) -> BackendKey:
    """The backend that `access` names; it reaches those of its own namespace only."""
    return BackendKey(BackendKind.INFERENCE, access.metadata.namespace, inference)


def _in_naming_order(access: ModelAccess) -> Iterator[str]:
    """The Inferences that `access` names, those first that say how the model is called.

    A fallback has the word while no target exists: that is what it is for.
    """
    routes = access.spec.routes
    yield from (target.inference for route in routes for target in route.targets)
    yield from (route.fallback.inference for route in routes if route.fallback is not None)
    yield from (mirror.inference for route in routes for mirror in route.mirror)


def _of_pipeline(access: ModelAccess) -> str | None:
    """How the first pipeline is called; it has the word where no Inference answers clients itself."""
    pipelines = (route.pipeline for route in access.spec.routes if route.pipeline is not None)
    return next((pipeline.served_name(access.key.name) for pipeline in pipelines), None)


@dataclass(frozen=True, slots=True)
class References:
    """The Inferences that one access can name; `served_name` is the one model name that its clients can ask for."""

    access: ObjectKey
    backends: Mapping[str, Backend]
    served_name: str | None

    @classmethod
    def of(cls, access: ModelAccess, backends: Mapping[BackendKey, Backend]) -> References:
        """Those that exist, of all that `access` names. The first of them says how the model is called."""
        found = {name: backends.get(backend_key(access, name)) for name in access.spec.inferences}
        known = {name: backend for name, backend in found.items() if backend is not None}
        first = next((name for name in _in_naming_order(access) if name in known), None)
        return cls(access.key, known, known[first].model_name if first is not None else _of_pipeline(access))

    def find_part(self, route: Route, inference: str) -> Backend | Refusal:
        """The Inference that a pipeline calls by its own name, whatever that is."""
        backend = self.backends.get(inference)
        if backend is not None:
            return backend
        where = f"spec.routes[{route.name}].pipeline.models: {inference}"
        message = (
            f"Inference {inference} does not exist in namespace {self.access.namespace}: "
            f"create it, or correct the pipeline of route {route.name}"
        )
        return Refusal(self.access, Reason.TARGET_NOT_FOUND, where, message)

    def misnamed(self, route: Route) -> tuple[Refusal, ...]:
        """Why the name of a pipeline does not fit what the other routes serve; empty when it does."""
        if route.pipeline is None:
            return ()
        name = route.pipeline.served_name(self.access.name)
        if name == self.served_name:
            return ()
        message = (
            f"the pipeline is called {name}, but the others serve {self.served_name}, and a request names only one: "
            f"set pipeline.modelName: {self.served_name}"
        )
        where = f"spec.routes[{route.name}].pipeline.modelName"
        return (Refusal(self.access, Reason.SERVED_NAME_MISMATCH, where, message),)

    def find(self, route: Route, part: str, inference: str) -> Backend | Refusal:
        """The Inference that `route` names in its field `part`."""
        where = f"spec.routes[{route.name}].{part}: {inference}"
        backend = self.backends.get(inference)
        if backend is None:
            message = (
                f"Inference {inference} does not exist in namespace {self.access.namespace}: "
                f"create it, or correct {part.removesuffix('s')} of route {route.name}"
            )
            return Refusal(self.access, Reason.TARGET_NOT_FOUND, where, message)
        if backend.model_name != self.served_name:
            message = (
                f"Inference {inference} serves model {backend.model_name}, but the others serve {self.served_name}, "
                f"and a request names only one: set spec.model.name: {self.served_name} there"
            )
            return Refusal(self.access, Reason.SERVED_NAME_MISMATCH, where, message)
        return backend
