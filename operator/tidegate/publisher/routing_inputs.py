"""Caches the inputs of routing, and feeds those that have changed to the routing."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tidegate.api.feature_compute import FeatureCompute
from tidegate.api.inference import Inference
from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.kube import kinds
from tidegate.kube.port import Manifest
from tidegate.kube.store import ObjectStore
from tidegate.kube.transforms import trim_pod, trim_secret
from tidegate.kube.typed_cache import ParseResult, TypedCache, ViewCache
from tidegate.planning.access.backends import (
    BACKEND_LABELS,
    build_features_backend,
    build_inference_backend,
    build_pipeline_backend,
    map_pipeline_routes,
    takes_traffic,
)
from tidegate.planning.pods import PodView, parse_pod
from tidegate.publisher.restart_deadlines import RestartDeadlines
from tidegate.resources.names import SPARE_LABEL, to_label_value
from tidegate.resources.shared_spare import parse_served_models
from tidegate.routing.credentials import KeyFetchResult, decode_secret
from tidegate.routing.failures import ObjectFailures
from tidegate.routing.fleet import Backend, BackendKey, BackendKind
from tidegate.routing.hosts import sort_by_age
from tidegate.routing.incremental import IncrementalTranslator
from tidegate.routing.pipelines import pipeline_owner


@dataclass(frozen=True, slots=True)
class _PodGroup:
    """The pods of one backend, by their label."""

    kind: BackendKind
    namespace: str
    label: str


class RoutingInputs:
    """Collects the keys of changed inputs, and passes the objects to an IncrementalTranslator on request."""

    def __init__(
        self, *, secret_namespaces: Collection[str] = (), deadlines: RestartDeadlines | None = None
    ) -> None:
        """Cache the Secrets with the label tidegate.io/auth in the namespaces `secret_namespaces`."""
        self.faults = ObjectFailures()
        self.secrets = {
            namespace: ObjectStore(kinds.SECRET, transform=trim_secret)
            for namespace in sorted(secret_namespaces)
        }
        self._secret_views = {
            namespace: ViewCache(store, decode_secret) for namespace, store in self.secrets.items()
        }
        self._changed_secrets: set[ObjectKey] = set()
        self._key_addresses = _IssuerKeyAddresses()
        self._fetched: dict[str, KeyFetchResult | None] = {}
        for secrets in self.secrets.values():
            secrets.subscribe(self._secret_changed)
        self._inferences = TypedCache(Inference, ObjectStore(kinds.INFERENCE))
        self._features = TypedCache(FeatureCompute, ObjectStore(kinds.FEATURE_COMPUTE))
        self._accesses = TypedCache(ModelAccess, ObjectStore(kinds.MODEL_ACCESS))
        self.pods = ObjectStore(kinds.POD, labels=tuple(BACKEND_LABELS.values()), transform=trim_pod)
        self._pod_views = ViewCache(self.pods, parse_pod)
        self._deadlines = deadlines or RestartDeadlines()
        self._backends: dict[_PodGroup, BackendKey] = {}
        self._groups: dict[ObjectKey, frozenset[_PodGroup]] = {}
        self._spares: defaultdict[_PodGroup, set[ObjectKey]] = defaultdict(set)
        """Pods that Inferences share, by the Inferences whose models they serve."""
        self._had_spares: set[_PodGroup] = set()
        """Inferences that had one of them, until they are deleted: a spare that stops serving one for a while must not end its checks."""
        self._needed: Mapping[_PodGroup, float] = {}
        self._pipelines: dict[ObjectKey, tuple[BackendKey, ...]] = {}
        self._changed_accesses: set[ObjectKey] = set()
        self._changed_groups: set[_PodGroup] = set()
        self._listeners: list[Callable[[], None]] = []
        self._inferences.store.subscribe(partial(self._backend_changed, BackendKind.INFERENCE))
        self._features.store.subscribe(partial(self._backend_changed, BackendKind.FEATURE_COMPUTE))
        self._accesses.store.subscribe(self._access_changed)
        self.pods.subscribe(self._pod_changed)

    @property
    def own_stores(self) -> tuple[ObjectStore, ...]:
        """Return the caches of our own kinds."""
        return self._inferences.store, self._features.store, self._accesses.store

    @property
    def required_stores(self) -> tuple[ObjectStore, ...]:
        """Return every cache that routing needs; Secrets are not among them, since they may be unreadable."""
        return *self.own_stores, self.pods

    @property
    def key_addresses(self) -> Mapping[str, Sequence[str]]:
        """Return the addresses of issuers' keys that accesses name, by namespace, those of the oldest accesses first."""
        return self._key_addresses.by_namespace

    def list_accesses(self) -> list[ModelAccess]:
        """Return the ModelAccesses that take traffic."""
        return [access for access in self._accesses.list_all() if takes_traffic(access)]

    def list_inferences(self) -> list[Inference]:
        """Return the Inferences that take traffic."""
        return [inference for inference in self._inferences.list_all() if takes_traffic(inference)]

    def count_pods(self, inference: ObjectKey) -> Mapping[float, float]:
        """Return the number of pods of an Inference that can answer now, by their capacity as a multiple of one replica's."""
        group = _inference_group(inference)
        backend = self._build_backend(BackendKey(group.kind, inference.namespace, inference.name), group)
        return {} if backend is None else backend.pods_by_capacity

    @property
    def has_spares(self) -> bool:
        """Return whether pods that Inferences share serve any model."""
        return bool(self._spares)

    def has_spare(self, inference: ObjectKey) -> bool:
        """Return whether a pod that Inferences share serves the model of one."""
        return _inference_group(inference) in self._spares

    def find_needed(self, inference: ObjectKey) -> float:
        """Return how many replicas' work clients send to an Inference, as `put_needed` has it; 0 if it has nothing."""
        return self._needed.get(_inference_group(inference), 0.0)

    def put_needed(self, needed: Mapping[ObjectKey, float]) -> None:
        """Take how many replicas' work clients send to Inferences, where that is more than was decided."""
        before, self._needed = self._needed, {_inference_group(key): count for key, count in needed.items()}
        changed = {
            group
            for group in before.keys() | self._needed.keys()
            if before.get(group) != self._needed.get(group)
        }
        if changed:
            self._changed_groups |= changed
            self._notify_listeners()

    def count_unparsed(self) -> Iterator[tuple[str, ParseResult, int]]:
        """Yield for each kind and reading how many objects are read in that way, zero included."""
        for parsed in (self._inferences, self._features, self._accesses):
            counts = parsed.count_by_result()
            for reading in ParseResult:
                yield parsed.kind.KIND, reading, counts.get(reading, 0)

    def put_keys(self, address: str, fetched: KeyFetchResult | None) -> None:
        """Take the newest result of fetching an issuer's address; None if it is not fetched any more."""
        self._fetched[address] = fetched
        self._notify_listeners()

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever there is something to feed."""
        self._listeners.append(changed)

    def find_wait_s(self) -> float | None:
        """Return the seconds until there is something to feed without an event; None if there will be nothing."""
        return self._deadlines.find_wait_s()

    def feed_changes(self, routing: IncrementalTranslator, awaited: Collection[str] = ()) -> None:
        """Pass everything that has changed since the last call to `routing`.

        An access whose new keys are still awaited, from one of the addresses in `awaited`, stays as it was.
        """
        for key in self._deadlines.take_passed():
            self._changed_groups |= self._groups.get(key, frozenset())
        waiting: set[ObjectKey] = set()
        for key in sorted(self._changed_accesses):
            with self.faults.isolate(f"ModelAccess {key}"):
                newest = self._accesses.get(key)
                access = newest if takes_traffic(newest) else None
                if access is not None and self._key_addresses.must_wait(key, access, awaited):
                    waiting.add(key)
                    continue
                routing.put_access(key, access)
                self._key_addresses.mark_routed(key, access)
        for group in self._changed_groups:
            backend_key = self._backends.get(group)
            if backend_key is None:
                continue
            with self.faults.isolate(f"backend {backend_key}"):
                backend = self._build_backend(backend_key, group)
                routing.put_backend(backend_key, backend)
                if backend is None:
                    del self._backends[group]
        for key in sorted(self._changed_secrets):
            with self.faults.isolate(f"Secret {key}"):
                routing.put_secret(key, self._secret_views[key.namespace].get(key))
        for address, fetched in self._fetched.items():
            routing.put_keys(address, fetched)
        self._fetched.clear()
        self._changed_secrets.clear()
        self._changed_accesses = waiting
        self._changed_groups.clear()

    def _build_backend(self, key: BackendKey, group: _PodGroup) -> Backend | None:
        if key.kind is BackendKind.PIPELINE:
            owner, route = pipeline_owner(key)
            access = self._accesses.get(owner)
            if access is not None and takes_traffic(access):
                backend = build_pipeline_backend(access, route, self._list_pods(group))
                # Pods whose route was removed still call their models.
                return backend if backend.calls or key in map_pipeline_routes(access) else None
        elif key.kind is BackendKind.INFERENCE:
            inference = self._inferences.get(key.object_key)
            if inference is not None and takes_traffic(inference):
                return build_inference_backend(
                    inference,
                    self._list_pods(group),
                    self._list_spares(group),
                    self._needed.get(group, 0.0),
                    had_spares=group in self._had_spares,
                )
        else:
            features = self._features.get(key.object_key)
            if features is not None and takes_traffic(features):
                return build_features_backend(features, self._list_pods(group))
        return None

    def _is_inference(self, group: _PodGroup) -> bool:
        backend = self._backends.get(group)
        return backend is not None and self._inferences.get(backend.object_key) is not None

    def _list_pods(self, group: _PodGroup) -> tuple[PodView, ...]:
        label = BACKEND_LABELS[group.kind]
        return self._deadlines.apply_deadlines(
            self._pod_views.by_label(label, group.label, namespace=group.namespace)
        )

    def _list_spares(self, group: _PodGroup) -> tuple[PodView, ...]:
        views = (self._pod_views.get(key) for key in sorted(self._spares.get(group, ())))
        return self._deadlines.apply_deadlines(view for view in views if view is not None)

    def _access_changed(self, key: ObjectKey) -> None:
        self._changed_accesses.add(key)
        access = self._accesses.get(key)
        now = () if access is None else tuple(map_pipeline_routes(access))
        self._key_addresses.put_access(key, access)
        before = self._pipelines.pop(key, ())
        if now:
            self._pipelines[key] = now
        for backend in {*before, *now}:
            group = _PodGroup(backend.kind, backend.namespace, to_label_value(backend.name))
            self._backends[group] = backend
            self._changed_groups.add(group)
        self._notify_listeners()

    def _secret_changed(self, key: ObjectKey) -> None:
        self._changed_secrets.add(key)
        self._notify_listeners()

    def _backend_changed(self, kind: BackendKind, key: ObjectKey) -> None:
        group = _PodGroup(kind, key.namespace, to_label_value(key.name))
        self._backends[group] = BackendKey(kind, key.namespace, key.name)
        if kind is BackendKind.INFERENCE and self._inferences.get(key) is None:
            self._had_spares.discard(group)
        self._changed_groups.add(group)
        self._notify_listeners()

    def _pod_changed(self, key: ObjectKey) -> None:
        body = self.pods.get(key)
        self._deadlines.put_pod(key, self._pod_views.get(key))
        labels = {} if body is None else body["metadata"].get("labels") or {}
        before = self._groups.pop(key, frozenset())
        now = frozenset(
            _PodGroup(kind, key.namespace, labels[label])
            for kind, label in BACKEND_LABELS.items()
            if label in labels
        )
        shared = _find_shared_groups(key, body) if body is not None else frozenset()
        for group in before & self._spares.keys():
            self._spares[group].discard(key)
            if not self._spares[group]:
                del self._spares[group]
                # Anyone may have written any names into the pod's annotation.
                if not self._is_inference(group):
                    self._had_spares.discard(group)
        for group in shared:
            self._spares[group].add(key)
        self._had_spares |= shared
        now |= shared
        if now:
            self._groups[key] = now
        if before or now:
            self._changed_groups |= before | now
            self._notify_listeners()

    def _notify_listeners(self) -> None:
        for changed in self._listeners:
            changed()


def _inference_group(inference: ObjectKey) -> _PodGroup:
    return _PodGroup(BackendKind.INFERENCE, inference.namespace, to_label_value(inference.name))


def _find_shared_groups(key: ObjectKey, pod: Manifest) -> frozenset[_PodGroup]:
    """Return the Inferences of its namespace whose models a shared spare serves."""
    metadata = pod["metadata"]
    if SPARE_LABEL not in (metadata.get("labels") or {}):
        return frozenset()
    return frozenset(
        _PodGroup(BackendKind.INFERENCE, key.namespace, to_label_value(name))
        for name in parse_served_models(metadata.get("annotations") or {})
    )


class _IssuerKeyAddresses:
    """Addresses of issuers' keys by access.

    An access whose address changes keeps its old keys until the new ones are fetched.
    """

    def __init__(self) -> None:
        self._accesses: dict[ObjectKey, ModelAccess] = {}
        self._routed: dict[ObjectKey, str | None] = {}
        self._addresses: Mapping[str, Sequence[str]] | None = None

    @property
    def by_namespace(self) -> Mapping[str, Sequence[str]]:
        """Return the addresses that accesses name, by namespace, those of the oldest accesses first."""
        if self._addresses is None:
            addresses: defaultdict[str, list[str]] = defaultdict(list)
            for access in sort_by_age(self._accesses.values()):
                address = _key_address(access)
                if address is not None and address not in addresses[access.key.namespace]:
                    addresses[access.key.namespace].append(address)
            self._addresses = addresses
        return self._addresses

    def put_access(self, key: ObjectKey, access: ModelAccess | None) -> None:
        """Take the access under `key`; None if it was deleted."""
        before = self._accesses.pop(key, None)
        if access is not None and _key_address(access) is not None:
            self._accesses[key] = access
        if _address_and_age(before) != _address_and_age(self._accesses.get(key)):
            self._addresses = None

    def mark_routed(self, key: ObjectKey, access: ModelAccess | None) -> None:
        """Record that routing uses this access from now on; None: no access under `key`."""
        if access is None or access.spec.auth is None:
            self._routed.pop(key, None)
        else:
            self._routed[key] = _key_address(access)

    def must_wait(self, key: ObjectKey, access: ModelAccess, awaited: Collection[str]) -> bool:
        """Return whether routing should keep the old access under `key`, since the new one's keys are still awaited.

        Without keys the new access would refuse everybody. If the old one is open to everybody, do not wait: an access that
        becomes guarded is guarded at once.
        """
        address = _key_address(access)
        return address in awaited and key in self._routed and self._routed[key] != address


def _key_address(access: ModelAccess) -> str | None:
    return None if access.spec.auth is None else access.spec.auth.jwks_uri


def _address_and_age(access: ModelAccess | None) -> object:
    return None if access is None else (_key_address(access), access.metadata.creation_timestamp)
