"""A receiver of OTLP over HTTP on loopback: what Envoy sends in protobuf, and our processes in JSON, as the same spans."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2


@dataclass(frozen=True, slots=True)
class Received:
    """One span as it came; `service` is the resource's service.name."""

    service: str
    name: str
    trace: str
    span: str
    parent: str
    attributes: Mapping[str, Any]
    failed: bool = False


@dataclass
class SpanReceiver:
    """Takes spans as long as `status` is 200; `authorizations` are what it was shown."""

    spans: list[Received] = field(default_factory=list)
    authorizations: set[str] = field(default_factory=set)
    status: int = 200
    requests: int = 0
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    endpoint: str = ""
    _runner: web.AppRunner | None = None

    async def start(self, context: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> str:
        """Where it is, as `telemetry.otlp.endpoint` wants it."""
        self.answers.set()
        application = web.Application(client_max_size=16 << 20)
        application.router.add_post("/v1/traces", self._take)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, 0, ssl_context=context).start()
        scheme = "http" if context is None else "https"
        self.endpoint = f"{scheme}://{host}:{self._runner.addresses[0][1]}"
        return self.endpoint

    async def stop(self) -> None:
        """It is not there any more."""
        if self._runner is not None:
            await self._runner.cleanup()

    def named(self, name: str, **attributes: object) -> list[Received]:
        """The spans of that name with these attributes, whose dots are written as double underscores."""
        wanted = {key.replace("__", "."): value for key, value in attributes.items()}
        return [
            span for span in self.spans if span.name == name and wanted.items() <= {**span.attributes}.items()
        ]

    async def _take(self, request: web.Request) -> web.Response:
        self.requests += 1
        await self.answers.wait()
        self.authorizations.add(request.headers.get("authorization", ""))
        body = await request.read()
        if self.status != 200:
            return web.Response(status=self.status)
        self.spans += spans_of(body, request.content_type)
        return web.Response(
            body=b"{}" if "json" in request.content_type else b"", content_type=request.content_type
        )


def spans_of(body: bytes, content_type: str) -> list[Received]:
    """The spans of one ExportTraceServiceRequest."""
    if content_type == "application/json":
        import json

        return _read(json.loads(body), "scopeSpans", str)
    message = trace_service_pb2.ExportTraceServiceRequest()
    message.ParseFromString(body)
    # xds-protos has the messages of 2021; the scope was the instrumentation library then, with the same numbers.
    return _read(json_format.MessageToDict(message), "instrumentationLibrarySpans", _hex)


def _hex(encoded: str) -> str:
    import base64

    return base64.b64decode(encoded).hex()


def _read(document: Mapping[str, Any], scopes: str, id_of: Any) -> list[Received]:
    found: list[Received] = []
    for resource in document.get("resourceSpans", ()):
        service = _attributes(resource["resource"])["service.name"]
        for scope in resource.get(scopes, ()):
            found += [
                Received(
                    service,
                    span["name"],
                    id_of(span["traceId"]),
                    id_of(span["spanId"]),
                    id_of(span.get("parentSpanId") or ""),
                    _attributes(span),
                    (span.get("status") or {}).get("code") in (2, "STATUS_CODE_ERROR"),
                )
                for span in scope.get("spans", ())
            ]
    return found


def _attributes(thing: Mapping[str, Any]) -> dict[str, Any]:
    return {each["key"]: _value(each["value"]) for each in thing.get("attributes", ())}


def _value(value: Mapping[str, Any]) -> Any:
    (kind, plain), *_ = value.items()
    if kind == "arrayValue":
        return tuple(_value(each) for each in plain.get("values", ()))
    return int(plain) if kind == "intValue" else plain
