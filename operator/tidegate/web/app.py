"""The web process: a read-only REST API and the overview page, from caches, never from the API server."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.resources import files
from typing import Final

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, select_autoescape

from tidegate.api.meta import ObjectKey, Resource
from tidegate.telemetry.prometheus import Traffic
from tidegate.web.read_model import Fleet, Overview, overview

TrafficSource = Callable[[], Awaitable[Mapping[str, Traffic]]]

_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


def create_app(fleet: Fleet, traffic: TrafficSource) -> FastAPI:
    """The application over `fleet`; `traffic` may answer with nothing."""
    app = FastAPI(title="Tidegate", version="v1alpha1", docs_url=None, redoc_url=None)
    pages = Environment(loader=PackageLoader("tidegate.web"), autoescape=select_autoescape())
    style = files("tidegate.web").joinpath("templates/tidegate.css").read_text()

    @app.middleware("http")
    async def harden(  # pyright: ignore[reportUnusedFunction]
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        response = await call_next(request)
        response.headers.update(_HEADERS)
        return response

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page() -> str:  # pyright: ignore[reportUnusedFunction]
        return pages.get_template("overview.html").render(overview=overview(fleet, await traffic()))

    @app.get("/static/tidegate.css", include_in_schema=False)
    async def stylesheet() -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response(style, media_type="text/css")

    @app.get("/api/v1/overview", response_model=Overview)
    async def whole() -> Overview:  # pyright: ignore[reportUnusedFunction]
        return overview(fleet, await traffic())

    @app.get("/api/v1/{kind}/{namespace}/{name}")
    async def one(kind: str, namespace: str, name: str) -> dict[str, object]:  # pyright: ignore[reportUnusedFunction]
        return _find(fleet, kind, ObjectKey(namespace, name))

    return app


def _find(fleet: Fleet, kind: str, key: ObjectKey) -> dict[str, object]:
    lists: Mapping[str, Callable[[], Sequence[Resource]]] = {
        "inferences": fleet.inferences,
        "modelaccesses": fleet.accesses,
        "featurecomputes": fleet.features,
    }
    if kind not in lists:
        raise HTTPException(404, f"no kind '{kind[:40]}'; there are {', '.join(lists)}")
    found = next((item for item in lists[kind]() if item.key == key), None)
    if found is None:
        raise HTTPException(404, f"no {kind} named {str(key)[:130]}")
    return found.dump()
