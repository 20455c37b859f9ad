"""Incremental translation: each change of the fleet is planned for the objects that depend on it, and no others.

The rules are those of routing.planner; whatever the order of changes, the result equals `planner.plan_routing` of the same fleet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from tidegate.api.meta import ObjectKey
from tidegate.api.model_access import ModelAccess
from tidegate.api.shared_names import resolve_shared_name
from tidegate.routing import hosts, planner
from tidegate.routing.access_index import AccessIndex, move_key
from tidegate.routing.access_pools import retry_budgets
from tidegate.routing.access_rules import AccessPlan, plan_access
from tidegate.routing.credentials import CallerCredentials, ClientAuthority, KeyFetchResult, SecretData
from tidegate.routing.failures import ObjectFailures
from tidegate.routing.fleet import Backend, BackendKey, BackendKind, FleetState
from tidegate.routing.hosts import HostKey, HostKind
from tidegate.routing.ir import EndpointPool, PlannedHost, PoolKey
from tidegate.routing.pipelines import find_leftovers, pipeline_owner


@dataclass(frozen=True, slots=True)
class RoutingChange:
    """The hosts and pools that may have changed, as they are now; None for one that is deleted."""

    hosts: Mapping[HostKey, PlannedHost | None]
    pools: Mapping[PoolKey, EndpointPool | None]

    @property
    def decisions(self) -> tuple[str, ...]:
        """Names of the AllocationDecisions that set the pods of these pools."""
        pools = (pool for pool in self.pools.values() if pool is not None)
        return tuple(sorted({pod.decision for pool in pools for pod in pool.answering_pods} - {""}))


class IncrementalTranslator:
    """Collects changes of the fleet's objects, and translates them to changes of the routing."""

    def __init__(self, *, secret_namespaces: Collection[str] = (), key_hosts: Collection[str] = ()) -> None:
        """Create an empty routing.

        `secret_namespaces` are those whose Secrets the gateways may read.
        `key_hosts` are the hosts from which issuers' keys are fetched.
        """
        self.faults = ObjectFailures()
        self._namespaces = frozenset(secret_namespaces)
        self._secrets: dict[ObjectKey, SecretData] = {}
        self._key_hosts = frozenset(key_hosts)
        self._fetched: dict[str, KeyFetchResult] = {}
        self._client_authority = ClientAuthority.ABSENT
        self._accesses: dict[ObjectKey, ModelAccess] = {}
        self._backends: dict[BackendKey, Backend] = {}
        self._index = AccessIndex()
        self._budgets: dict[ObjectKey, Mapping[BackendKey, int]] = {}
        self._own_pools: dict[ObjectKey, tuple[EndpointPool, ...]] = {}
        self._inner_hosts: set[ObjectKey] = set()
        self._pipelines: defaultdict[ObjectKey, set[BackendKey]] = defaultdict(set)
        self._callers: defaultdict[ObjectKey, set[BackendKey]] = defaultdict(set)
        # Ordered as the changes arrive, which is the order of the objects in memory: in random order ten thousand take a third longer.
        self._changed_accesses: dict[ObjectKey, None] = {}
        self._changed_backends: dict[BackendKey, None] = {}

    def put_access(self, key: ObjectKey, access: ModelAccess | None) -> None:
        """Update or delete (None) an access; one that takes no traffic any more is deleted."""
        if access is self._accesses.get(key):
            return
        if access is None:
            del self._accesses[key]
        else:
            self._accesses[key] = access
        self._changed_accesses[key] = None
        self._mark_dirty(self._index.put(key, access))
        self._put_budgets(key, {} if access is None else retry_budgets(access))

    def put_backend(self, key: BackendKey, backend: Backend | None) -> None:
        """Update or delete (None) a backend."""
        before = self._backends.get(key)
        if backend == before:
            return
        if backend is None:
            del self._backends[key]
        else:
            self._backends[key] = backend
        if key.kind is BackendKind.PIPELINE:
            owner, _ = pipeline_owner(key)
            self._mark_dirty((owner,))
            move_key(
                self._pipelines, key, () if before is None else (owner,), () if backend is None else (owner,)
            )
            move_key(self._callers, key, _called_inferences(before), _called_inferences(backend))
            return
        self._changed_backends[key] = None
        if key.kind is BackendKind.INFERENCE:
            users = self._index.accesses_for_inference(key.object_key)
            same_host = _host_inputs(backend) == _host_inputs(before)
            # An access's own pools contain the endpoints too.
            self._mark_dirty(user for user in users if not same_host or user in self._own_pools)
            # Pods of a pipeline may call what their access no longer names.
            callers = self._callers.get(key.object_key, ())
            self._mark_dirty(pipeline_owner(caller)[0] for caller in callers)

    def put_secret(self, key: ObjectKey, secret: SecretData | None) -> None:
        """Update or delete (None) a Secret that the gateways may read."""
        if secret == self._secrets.get(key):
            return
        if secret is None:
            del self._secrets[key]
        else:
            self._secrets[key] = secret
        self._mark_dirty(self._index.accesses_for_secret(key))

    def _mark_dirty(self, accesses: Iterable[ObjectKey]) -> None:
        """Mark accesses to be planned by the next `take_change`."""
        self._changed_accesses |= dict.fromkeys(accesses)

    def put_keys(self, address: str, fetched: KeyFetchResult | None) -> None:
        """Update the result of fetching keys from an issuer's address; None when it is not fetched any more."""
        if fetched == self._fetched.get(address):
            return
        if fetched is None:
            del self._fetched[address]
        else:
            self._fetched[address] = fetched
        self._mark_dirty(self._index.accesses_for_key_address(address))

    def put_client_authority(self, authority: ClientAuthority) -> None:
        """Set whether gateways can verify client certificates."""
        if authority is self._client_authority:
            return
        self._client_authority = authority
        self._mark_dirty(
            key for key, access in self._accesses.items() if access.spec.auth and access.spec.auth.mtls
        )

    def replace_fleet(self, fleet: FleetState) -> None:
        """Replace the whole fleet."""
        sources = fleet.credentials.namespaces, fleet.credentials.key_hosts
        if sources != (self._namespaces, self._key_hosts):
            self._namespaces, self._key_hosts = sources
            self._mark_dirty(key for key, access in self._accesses.items() if access.spec.auth)
        self.put_client_authority(fleet.credentials.client_authority)
        secrets = fleet.credentials.secrets
        for key in self._secrets.keys() | secrets.keys():
            self.put_secret(key, secrets.get(key))
        for address in self._fetched.keys() | fleet.credentials.fetched.keys():
            self.put_keys(address, fleet.credentials.fetched.get(address))
        accesses = {access.key: access for access in fleet.accesses}
        for key in {**self._accesses, **accesses}:
            self.put_access(key, accesses.get(key))
        for backend in {**self._backends, **fleet.backends}:
            self.put_backend(backend, fleet.backends.get(backend))

    def take_change(self) -> RoutingChange:
        """Return what changed in the routing since the last call."""
        changed_hosts: dict[HostKey, PlannedHost | None] = {}
        pools: dict[PoolKey, EndpointPool | None] = {}
        for access in self._changed_accesses:
            with self.faults.isolate(f"ModelAccess {access}"):
                plan = self._plan_access(access)
                host = None if plan is None else plan.planned_host
                changed_hosts.update(self._put_inner_host(access, plan))
                changed_hosts[HostKey(HostKind.ACCESS, access)] = host
                pools.update(self._put_own_pools(access, () if plan is None else plan.pools))
        for key in self._changed_backends:
            with self.faults.isolate(f"backend {key}"):
                backend = self._backends.get(key)
                pool = (
                    None if backend is None else planner.shared_pool(backend, self._shared_retry_budget(key))
                )
                if planner.has_host(key):
                    host = None if backend is None else planner.planned_features_host(backend)
                    changed_hosts[planner.features_host_key(key)] = host
                pools[key] = pool
        self._changed_accesses = {}
        self._changed_backends = {}
        return RoutingChange(changed_hosts, pools)

    def _put_inner_host(
        self, key: ObjectKey, plan: AccessPlan | None
    ) -> Mapping[HostKey, PlannedHost | None]:
        """Return the change of the host for calls of one access's pipelines, if it has or had one."""
        had_host = key in self._inner_hosts
        now = None if plan is None else plan.planned_parts_host
        if now is None:
            self._inner_hosts.discard(key)
        else:
            self._inner_hosts.add(key)
        return {HostKey(HostKind.PIPELINE, key): now} if had_host or now is not None else {}

    def _put_own_pools(
        self, key: ObjectKey, now: tuple[EndpointPool, ...]
    ) -> Mapping[PoolKey, EndpointPool | None]:
        """Return the pools of one access, and None for those that it no longer has."""
        deleted: dict[PoolKey, EndpointPool | None] = {
            pool.backend: None for pool in self._own_pools.pop(key, ())
        }
        if now:
            self._own_pools[key] = now
        return deleted | {pool.backend: pool for pool in now}

    def _plan_access(self, key: ObjectKey) -> AccessPlan | None:
        access = self._accesses.get(key)
        if access is None:
            return None
        rivals = [self._accesses[rival] for rival in self._index.host_rivals(access)]
        owners = hosts.find_host_owners([access, *rivals]) if access.spec.hosts else {}
        credentials = CallerCredentials(
            self._namespaces,
            self._secrets,
            self._key_hosts,
            self._fetched,
            client_authority=self._client_authority,
        )
        pipelines = (self._backends[backend] for backend in self._pipelines.get(key, ()))
        return plan_access(access, self._backends, owners, credentials, find_leftovers(access, pipelines))

    def _put_budgets(self, key: ObjectKey, budgets: Mapping[BackendKey, int]) -> None:
        before = self._budgets.pop(key, {})
        if budgets:
            self._budgets[key] = budgets
        if budgets != before:
            self._changed_backends |= dict.fromkeys((*budgets, *before))

    def _shared_retry_budget(self, backend: BackendKey) -> int | None:
        if backend.kind is not BackendKind.INFERENCE:
            return None
        users = self._index.accesses_for_inference(backend.object_key)
        percents = (self._budgets.get(user, {}).get(backend) for user in users)
        return max((percent for percent in percents if percent is not None), default=None)


def _called_inferences(pipeline: Backend | None) -> frozenset[ObjectKey]:
    """Return the Inferences that the pods of a pipeline call."""
    if pipeline is None:
        return frozenset()
    return frozenset(resolve_shared_name(name, pipeline.key.namespace) for name in pipeline.calls)


def _host_inputs(backend: Backend | None) -> tuple[object, ...] | None:
    """Return everything in a backend that the host of an access depends on.

    A new pod of a backend with ten thousand accesses therefore changes only its endpoints.
    """
    if backend is None:
        return None
    has_own = bool(backend.endpoints)
    return backend.model_name, has_own, bool(backend.answering_pods), backend.value, backend.shared_with
