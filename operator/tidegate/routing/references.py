"""The Inferences that a ModelAccess names, and refusals for those that it cannot use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess, Route
from tidegate.api.reasons import Reason
from tidegate.api.shared_names import describe_absence, format_shared_name, resolve_shared_name
from tidegate.routing.fleet import Backend, BackendKey, BackendKind
from tidegate.routing.refusals import RoutingRefusal


def backend_key(access: ModelAccess, inference: str) -> BackendKey:
    """Return the key of the backend that `access` names `inference`."""
    key = resolve_shared_name(inference, access.metadata.namespace)
    return BackendKey(BackendKind.INFERENCE, key.namespace, key.name)


def backend_name(access: ModelAccess, backend: Backend) -> str:
    """Return the name by which `access` refers to an Inference that it may use."""
    return format_shared_name(backend.key.object_key, access.metadata.namespace)


def is_short_name(inference: str, namespace: str) -> bool:
    """Return whether a name leaves out `namespace`, that of the access that gives it.

    Each Inference would otherwise have two names in one access, and a route could have the same target twice.
    """
    return not inference.startswith(f"{namespace}/")


def find_backend(
    access: ModelAccess, inference: str, backends: Mapping[BackendKey, Backend]
) -> Backend | None:
    """Return the Inference that `access` names, if it exists and the access may use it.

    One of another namespace must share with that of the access.
    """
    namespace = access.metadata.namespace
    key = backend_key(access, inference)
    backend = backends.get(key) if is_short_name(inference, namespace) else None
    if backend is None:
        return None
    return backend if key.namespace == namespace or namespace in backend.shared_with else None


def _iterate_naming_order(access: ModelAccess) -> Iterator[str]:
    """Yield the Inferences that `access` names, in the order in which they define the model's name.

    A fallback defines it only while no target exists.
    """
    routes = access.spec.routes
    yield from (target.inference for route in routes for target in route.targets)
    yield from (route.fallback.inference for route in routes if route.fallback is not None)
    yield from (mirror.inference for route in routes for mirror in route.mirror)


def _pipeline_served_name(access: ModelAccess) -> str | None:
    """Return the model name of the first pipeline; it counts if no Inference answers clients directly."""
    pipelines = (route.pipeline for route in access.spec.routes if route.pipeline is not None)
    return next((pipeline.resolve_served_name(access.key.name) for pipeline in pipelines), None)


@dataclass(frozen=True, slots=True)
class RouteBackends:
    """The Inferences of one route that can be used, and refusals for the others.

    `targets` are sorted by name; `mirrors` have the percentage of each.
    """

    targets: tuple[Backend, ...]
    mirrors: tuple[tuple[int, Backend], ...]
    fallback: Backend | None
    refusals: tuple[RoutingRefusal, ...]


@dataclass(frozen=True, slots=True)
class AccessReferences:
    """The Inferences that one access names and that exist.

    `served_name` is the one model name that its clients can request.
    """

    access: ObjectKey
    backends: Mapping[str, Backend]
    served_name: str | None

    @classmethod
    def from_access(cls, access: ModelAccess, backends: Mapping[BackendKey, Backend]) -> AccessReferences:
        """Find the existing Inferences among those that `access` names; the first one defines `served_name`."""
        named = {name: find_backend(access, name, backends) for name in access.spec.inference_names}
        existing = {name: backend for name, backend in named.items() if backend is not None}
        first = next((name for name in _iterate_naming_order(access) if name in existing), None)
        return cls(
            access.key,
            existing,
            existing[first].model_name if first is not None else _pipeline_served_name(access),
        )

    def find_part_inference(self, route: Route, inference: str) -> Backend | RoutingRefusal:
        """Return the Inference that a pipeline calls; its model may have any name."""
        backend = self.backends.get(inference)
        if backend is not None:
            return backend
        field = f"spec.routes[{route.name}].pipeline.models: {inference}"
        return self._refuse_absent(field, inference)

    def _refuse_absent(self, field: str, inference: str) -> RoutingRefusal:
        """Return the refusal for an Inference that does not exist or that the access may not use."""
        namespace = self.access.namespace
        if not is_short_name(inference, namespace):
            name = resolve_shared_name(inference, namespace).name
            message = f"Inference {inference} is in the namespace of this object: name it {name}"
            return RoutingRefusal(self.access, Reason.INVALID_SPEC, field, message)
        message = describe_absence(Inference, inference, namespace)
        return RoutingRefusal(self.access, Reason.TARGET_NOT_FOUND, field, message)

    def check_pipeline_name(self, route: Route) -> tuple[RoutingRefusal, ...]:
        """Return a refusal if the name of a pipeline differs from what the other routes serve; else nothing."""
        if route.pipeline is None:
            return ()
        name = route.pipeline.resolve_served_name(self.access.name)
        if name == self.served_name:
            return ()
        message = (
            f"the pipeline is called {name}, but the others serve {self.served_name}, and a request names only one: "
            f"set pipeline.modelName: {self.served_name}"
        )
        field = f"spec.routes[{route.name}].pipeline.modelName"
        return (RoutingRefusal(self.access, Reason.SERVED_NAME_MISMATCH, field, message),)

    def resolve_route(self, route: Route) -> RouteBackends:
        """Return the Inferences that `route` names in its targets, mirrors and fallback."""
        names = sorted(target.inference for target in route.targets)
        targets = [self._find_inference(route, "targets", name) for name in names]
        mirrors = [
            (mirror.percent, self._find_inference(route, "mirror", mirror.inference))
            for mirror in route.mirror
        ]
        fallback = (
            self._find_inference(route, "fallback", route.fallback.inference) if route.fallback else None
        )
        results = (*targets, *(result for _, result in mirrors), fallback)
        return RouteBackends(
            targets=tuple(result for result in targets if isinstance(result, Backend)),
            mirrors=tuple((percent, result) for percent, result in mirrors if isinstance(result, Backend)),
            fallback=fallback if isinstance(fallback, Backend) else None,
            refusals=tuple(result for result in results if isinstance(result, RoutingRefusal)),
        )

    def _find_inference(self, route: Route, part: str, inference: str) -> Backend | RoutingRefusal:
        """Return the Inference that `route` names in its field `part`, or why it cannot be used."""
        field = f"spec.routes[{route.name}].{part}: {inference}"
        backend = self.backends.get(inference)
        if backend is None:
            return self._refuse_absent(field, inference)
        if backend.model_name != self.served_name:
            message = (
                f"Inference {inference} serves model {backend.model_name}, but the others serve {self.served_name}, "
                f"and a request names only one: set spec.model.name: {self.served_name} there"
            )
            return RoutingRefusal(self.access, Reason.SERVED_NAME_MISMATCH, field, message)
        return backend
