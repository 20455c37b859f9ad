"""Builds the state of a fleet for a test: backends with endpoints, and the ModelAccesses before them."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.routing.credentials import CallerCredentials, ClientAuthority, SecretData
from tidegate.routing.fleet import Backend, BackendKey, BackendKind, Endpoint, FleetState


def a_backend(
    name: str = "ctr",
    *addresses: str,
    namespace: str = "ads",
    model_name: str = "ctr",
    kind: BackendKind = BackendKind.INFERENCE,
    value: str = "1",
) -> Backend:
    """An Inference with a ready pod at each of `addresses`; without any it sleeps."""
    key = BackendKey(kind, namespace, name)
    return Backend(key, model_name, tuple(Endpoint(address) for address in addresses), value=value)


def a_feature_compute(name: str, *addresses: str, namespace: str = "ads") -> Backend:
    """A FeatureCompute with a ready pod at each of `addresses`."""
    return a_backend(name, *addresses, namespace=namespace, model_name=name, kind=BackendKind.FEATURE_COMPUTE)


def credentials(
    secrets: Mapping[str, Mapping[str, bytes]],
    namespace: str = "ads",
    *,
    client_authority: ClientAuthority = ClientAuthority.ABSENT,
) -> CallerCredentials:
    """These Secrets, by name, in a namespace whose Secrets are read."""
    data = {ObjectKey(namespace, name): SecretData(entries) for name, entries in secrets.items()}
    return CallerCredentials(frozenset({namespace}), data, client_authority=client_authority)


def a_fleet(*parts: ModelAccess | Backend | CallerCredentials) -> FleetState:
    """A fleet of these objects."""
    backends = [part for part in parts if isinstance(part, Backend)]
    return FleetState(
        accesses=tuple(part for part in parts if isinstance(part, ModelAccess)),
        backends={backend.key: backend for backend in backends},
        credentials=next(
            (part for part in parts if isinstance(part, CallerCredentials)), CallerCredentials()
        ),
    )
