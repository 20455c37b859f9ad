"""Client of the API server: each call sends one request with plain JSON."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Self

import aiohttp

from tidegate.api.conditions import select_own_conditions
from tidegate.api.meta import GROUP, ObjectKey
from tidegate.errors import (
    ApiUnavailableError,
    ConflictError,
    PermanentError,
    TidegateError,
    UnknownKindError,
)
from tidegate.kube.changes import add_apply_annotations
from tidegate.kube.events import EventRecorder
from tidegate.kube.fence import CREATED_ANNOTATION, Fence
from tidegate.kube.field_ownership import take_over_patch, was_created
from tidegate.kube.kinds import EVENT, JOB, POD, Kind, kind_of
from tidegate.kube.port import EventNote, Manifest
from tidegate.kube.portforward import forward_port, get_json
from tidegate.kube.store import key_of
from tidegate.kube.transport import APPLY_PATCH, MERGE_PATCH, ApiRequest, ApiTransport, ImpersonatedUser
from tidegate.kube.writes import ApiWrite, WriteObserver, WriteResult, WriteVerb, classify_error, ignore_write

_TAKE_OVER_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Identity, timeouts and page size of a client."""

    field_manager: str
    """Owner of the fields that `apply` writes: `tidegate-<controller>`."""
    request_timeout: timedelta = timedelta(seconds=15)
    list_timeout: timedelta = timedelta(seconds=60)
    page_size: int = 250
    user_agent: str = "tidegate"
    impersonated: ImpersonatedUser | None = None
    """User to impersonate in every request; None: the user of the credentials."""


class KubeClient:
    """Implements port.ClusterApi, and the calls that watches and leases need.

    One per process. `close` it, or use it as an async context manager.
    """

    def __init__(
        self, transport: ApiTransport, settings: ClientSettings, *, observer: WriteObserver = ignore_write
    ) -> None:
        """Call `observer` with every write that has ended."""
        self._transport = transport
        self._settings = settings
        self._observer = observer
        self._events = EventRecorder(component=settings.field_manager)

    @classmethod
    async def connect(
        cls,
        settings: ClientSettings,
        *,
        kubeconfig: Path | None = None,
        context: str | None = None,
        anonymous: bool = False,
        observer: WriteObserver = ignore_write,
    ) -> Self:
        """Connect with `kubeconfig` and one of its contexts, or without one as the pod's ServiceAccount.

        An `anonymous` client has no credentials except the token that `with_token` adds.
        Raises PermanentError if there are no such credentials.
        """
        transport = await ApiTransport.connect(
            kubeconfig,
            context=context,
            user_agent=settings.user_agent,
            impersonated=settings.impersonated,
            anonymous=anonymous,
        )
        return cls(transport, settings, observer=observer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        await self._transport.close()

    def with_field_manager(self, field_manager: str) -> KubeClient:
        """Return a client with the same connections and another field manager; it is closed with this client."""
        settings = replace(self._settings, field_manager=field_manager)
        return KubeClient(self._transport, settings, observer=self._observer)

    def with_token(self, token: str) -> KubeClient:
        """Return a client with the same connections that authenticates with `token`; it is closed with this client.

        Only an anonymous client may be given a token.
        """
        return KubeClient(self._transport.with_token(token), self._settings, observer=self._observer)

    def with_impersonation(self, user: ImpersonatedUser) -> KubeClient:
        """Return a client with the same connections that impersonates a user; it is closed with this client."""
        return KubeClient(self._transport.with_impersonation(user), self._settings, observer=self._observer)

    async def post_review(self, path: str, body: Manifest) -> Manifest:
        """Return the answer to a TokenReview or a SubjectAccessReview, which the API server does not store."""
        request = ApiRequest("POST", path, self._settings.request_timeout, body=body)
        answer = await self._transport.request_json(request)
        if answer is None:
            message = f"the API server has no {path}"
            raise ApiUnavailableError(message)
        return answer

    async def get_version(self) -> str:
        """Return the API server's version, for example v1.34.1."""
        answer = await self._transport.request_json(
            ApiRequest("GET", "/version", self._settings.request_timeout)
        )
        return str((answer or {}).get("gitVersion", ""))

    async def get(self, kind: Kind, key: ObjectKey) -> Manifest | None:
        """Return the object; None if it does not exist."""
        return await self._transport.request_json(
            ApiRequest("GET", kind.url_path(key.namespace, key.name), self._settings.request_timeout)
        )

    async def list(
        self, kind: Kind, *, namespace: str = "", selector: str = "", fields: str = ""
    ) -> Sequence[Manifest]:
        """Return all objects of the kind that the selectors match: see port.ClusterApi."""
        pages = self.list_pages(kind, namespace=namespace, selector=selector, fields=fields)
        return [item async for page, _ in pages for item in page]

    async def list_pages(
        self, kind: Kind, *, namespace: str = "", selector: str = "", fields: str = ""
    ) -> AsyncIterator[tuple[Sequence[Manifest], str]]:
        """Yield the objects by page, each page with the resourceVersion from which a watch sees all later changes.

        No more than one page of ten thousand objects is in memory. Raises ExpiredError if the listing takes longer
        than the API server keeps its pages.
        """
        query = {"limit": str(self._settings.page_size), **_selector_query(selector, fields)}
        while True:
            page = await self._transport.request_json(
                ApiRequest("GET", kind.url_path(namespace), self._settings.list_timeout, query=query)
            )
            if page is None:
                raise UnknownKindError(_describe_unknown_kind(kind))
            items, next_page, version = _parse_page(kind, page)
            del page
            yield items, version
            if not next_page:
                return
            query = {**query, "continue": next_page}

    def open_watch(
        self,
        kind: Kind,
        *,
        resource_version: str,
        namespace: str = "",
        selector: str = "",
        fields: str = "",
        duration: timedelta,
    ) -> AbstractAsyncContextManager[aiohttp.StreamReader]:
        """Open a watch and return its raw lines. The server ends it after `duration`; later silence is a stall.

        Raises ExpiredError if the resourceVersion is too old.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(int(duration.total_seconds())),
            **_selector_query(selector, fields),
        }
        return self._transport.open_stream(
            ApiRequest("GET", kind.url_path(namespace), self._settings.request_timeout, query=query)
        )

    async def read_from_pod(self, pod: ObjectKey, port: int, target: str) -> dict[str, Any]:
        """Return the JSON that a pod answers to GET `target`, on its loopback too: see portforward.get_json."""
        return await get_json(self._transport, pod, port, target, self._settings.request_timeout)

    async def read_pod_log(
        self, pod: ObjectKey, container: str, *, lines: int, max_bytes: int, previous: bool = False
    ) -> tuple[bytes, int]:
        """Return the newest lines of a container's log, and the number of bytes that were cut off before them.

        `previous` reads the log of the container's previous instance.
        Raises as ApiTransport.request_json does, and PermanentError if the pod does not exist.
        """
        # limitBytes would keep the oldest lines instead of the newest.
        query = {"container": container, "tailLines": str(lines), "timestamps": "true"}
        path = POD.url_path(pod.namespace, pod.name, "log")
        request = ApiRequest(
            "GET",
            path,
            self._settings.list_timeout,
            query={**query, **({"previous": "true"} if previous else {})},
        )
        log = await self._transport.read_tail(request, max_bytes)
        if log is None:
            message = f"pod {pod} has no log of {container}: it is gone"
            raise PermanentError(message)
        return log

    def forward_port(
        self, pod: ObjectKey, port: int, duration: timedelta
    ) -> AbstractAsyncContextManager[str]:
        """Return a host:port on loopback that leads to a pod's port: see portforward.forward_port."""
        return forward_port(self._transport, pod, port, duration)

    async def apply(self, manifest: Manifest, fence: Fence) -> Manifest:
        """Apply the object; it gets the annotations tidegate.io/applied and tidegate.io/epoch. See port.ClusterApi."""
        kind, metadata = kind_of(manifest), manifest["metadata"]
        path = kind.url_path(metadata.get("namespace", ""), metadata["name"])
        stored = await self._send_apply(kind, path, add_apply_annotations(manifest, fence.epoch), fence)
        if stored is None:
            raise _missing_namespace_error(kind, metadata)
        return stored

    async def apply_new(self, manifest: Manifest, fence: Fence) -> Manifest | None:
        """Create the object with the annotations tidegate.io/created and tidegate.io/epoch. See port.ClusterApi."""
        kind, metadata = kind_of(manifest), manifest["metadata"]
        request = ApiRequest(
            "POST",
            kind.url_path(metadata.get("namespace", "")),
            self._write_timeout(fence),
            query={"fieldManager": self._settings.field_manager},
            body=add_apply_annotations(manifest, fence.epoch, CREATED_ANNOTATION),
        )
        try:
            created = await self._send_write(WriteVerb.CREATE, kind.plural, request)
        except ConflictError:
            return None
        if created is None:
            raise _missing_namespace_error(kind, metadata)
        return created

    async def take_over(self, kind: Kind, key: ObjectKey, fence: Fence) -> Manifest | None:
        """Take over the fields of a created object by server-side apply. See port.ClusterApi."""
        attempts = _TAKE_OVER_ATTEMPTS
        while True:
            live = await self.get(kind, key)
            if live is None or not was_created(live):
                return live
            try:
                patch = take_over_patch(live, self._settings.field_manager, fence.epoch)
                return await self.merge(kind, key, patch, fence)
            except ConflictError:
                # Another writer, such as the Deployment controller, has updated the status since.
                attempts -= 1
                if not attempts:
                    raise

    async def apply_status(
        self, kind: Kind, key: ObjectKey, status: Manifest, *, uid: str, fence: Fence
    ) -> Manifest | None:
        """Apply our fields of the status, without the conditions of other controllers. See port.ClusterApi.

        The API server ignores a uid in a custom resource's status, so a new object of the same name may get the status
        of its predecessor. Its creation is an event of its own, and its next reconcile overwrites that status.
        """
        body = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {"name": key.name, "namespace": key.namespace, "uid": uid},
            "status": {**status, **_own_conditions(status)},
        }
        path = kind.url_path(key.namespace, key.name, "status")
        stored = await self._send_apply(kind, path, body, fence, subresource="status")
        return stored if stored is not None and stored["metadata"]["uid"] == uid else None

    async def merge(self, kind: Kind, key: ObjectKey, patch: Manifest, fence: Fence) -> Manifest | None:
        """Merge `patch` into an object of another owner. See port.ClusterApi."""
        path = kind.url_path(key.namespace, key.name)
        query = {"fieldManager": self._settings.field_manager}
        request = ApiRequest(
            "PATCH", path, self._write_timeout(fence), query=query, body=patch, content_type=MERGE_PATCH
        )
        return await self._send_write(WriteVerb.MERGE, kind.plural, request)

    async def delete(self, kind: Kind, key: ObjectKey, *, uid: str, fence: Fence) -> None:
        """Delete the object with this uid. See port.ClusterApi."""
        # A Job deleted in the background would leave running pods beside those of the next Job of that name or run.
        policy = "Foreground" if kind == JOB else "Background"
        body = {"preconditions": {"uid": uid}, "propagationPolicy": policy}
        request = ApiRequest(
            "DELETE", kind.url_path(key.namespace, key.name), self._write_timeout(fence), body=body
        )
        try:
            await self._send_write(WriteVerb.DELETE, kind.plural, request)
        except ConflictError:
            return  # another object has the name now

    async def create_event(self, note: EventNote) -> None:
        """Create the Event unless it was created recently. See port.ClusterApi."""
        body = self._events.render_event(note)
        if body is None:
            return
        path = EVENT.url_path(note.key.namespace or "default")
        request = ApiRequest("POST", path, self._settings.request_timeout, body=body)
        try:
            await self._send_write(WriteVerb.CREATE, EVENT.plural, request)
        except TidegateError:
            self._events.forget(note)

    async def create(self, kind: Kind, manifest: Manifest, *, within: timedelta | None = None) -> Manifest:
        """Create the object. Raises ConflictError if an object of that name exists."""
        path = kind.url_path(manifest["metadata"].get("namespace", ""))
        request = ApiRequest("POST", path, within or self._settings.request_timeout, body=manifest)
        created = await self._send_write(WriteVerb.CREATE, kind.plural, request)
        if created is None:
            raise _missing_namespace_error(kind, manifest["metadata"])
        return created

    async def replace(self, kind: Kind, manifest: Manifest, *, within: timedelta | None = None) -> Manifest:
        """Replace the object if it still has the manifest's resourceVersion; else raise ConflictError."""
        metadata = manifest["metadata"]
        path = kind.url_path(metadata.get("namespace", ""), metadata["name"])
        request = ApiRequest("PUT", path, within or self._settings.request_timeout, body=manifest)
        replaced = await self._send_write(WriteVerb.REPLACE, kind.plural, request)
        if replaced is None:
            message = f"{kind} {metadata['name']} was deleted"
            raise ConflictError(message)
        return replaced

    async def _send_apply(
        self, kind: Kind, path: str, body: Mapping[str, Any], fence: Fence, *, subresource: str = ""
    ) -> dict[str, Any] | None:
        request = ApiRequest(
            "PATCH",
            path,
            self._write_timeout(fence),
            query={"fieldManager": self._settings.field_manager, "force": "true"},
            body=body,
            content_type=APPLY_PATCH,
        )
        resource = f"{kind.plural}/{subresource}" if subresource else kind.plural
        return await self._send_write(WriteVerb.APPLY, resource, request)

    async def _send_write(self, verb: WriteVerb, resource: str, request: ApiRequest) -> dict[str, Any] | None:
        """Send the write and report its result to the observer, unless it is cancelled."""
        started_at = time.monotonic()

        def report(result: WriteResult) -> None:
            self._observer(ApiWrite(verb, resource, result, time.monotonic() - started_at))

        try:
            answer = await self._transport.request_json(request)
        except TidegateError as error:
            report(classify_error(error))
            raise
        report(WriteResult.GONE if answer is None else WriteResult.OK)
        return answer

    def _write_timeout(self, fence: Fence) -> timedelta:
        """Return the write's timeout, which never exceeds what remains of the fence."""
        fence.check()
        return min(self._settings.request_timeout, timedelta(seconds=min(fence.remaining_s(), 3600.0)))


def _missing_namespace_error(kind: Kind, metadata: Mapping[str, Any]) -> ApiUnavailableError:
    return ApiUnavailableError(
        f"{kind} {metadata.get('namespace', '')}/{metadata['name']}: its namespace does not exist"
    )


def _own_conditions(status: Manifest) -> Mapping[str, Any]:
    """Return the status's conditions without those of other controllers; nothing if it has no conditions."""
    if "conditions" not in status:
        return {}
    return {"conditions": select_own_conditions(status["conditions"] or ())}


def _parse_page(kind: Kind, page: Mapping[str, Any]) -> tuple[Sequence[Manifest], str, str]:
    """Return a page's objects, its continue token (empty on the last page) and its resourceVersion.

    Raises ApiUnavailableError if `page` is no listing.
    """
    # The API server omits apiVersion and kind from the items of a list.
    type_meta = {"apiVersion": kind.api_version, "kind": kind.kind}
    try:
        items = [{**type_meta, **item} for item in page.get("items") or ()]
        for item in items:
            key_of(item)
        metadata = page["metadata"]
        return items, metadata.get("continue") or "", metadata.get("resourceVersion") or ""
    except (KeyError, TypeError, AttributeError) as exc:
        message = f"the API server's response to a listing of {kind} is no list"
        raise ApiUnavailableError(message) from exc


def _describe_unknown_kind(kind: Kind) -> str:
    """Return that the API server does not serve the kind, and the way out."""
    way_out = (
        "are the CRDs installed?"
        if kind.group == GROUP
        else f"it needs a version or an add-on that serves {kind.api_version}"
    )
    return f"the API server does not know the kind {kind}: {way_out}"


def _selector_query(selector: str, fields: str = "") -> Mapping[str, str]:
    selectors = {"labelSelector": selector, "fieldSelector": fields}
    return {name: value for name, value in selectors.items() if value}
