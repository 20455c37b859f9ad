"""The node agent's control port: its report, for clients with the controllers' certificate only."""

import math

from aiohttp import web

from tidegate_dataplane.agent.control_server import controllers_only
from tidegate_dataplane.node_agent.watcher import MpsWatcher

MAX_WAIT_S = 30.0


def control_app(watcher: MpsWatcher) -> web.Application:
    """Return the application that serves `GET /v1/node?known=<revision>&wait=<seconds>`.

    It answers as soon as the report has another revision, so that a client can follow many nodes without polling.
    """

    async def get_node(request: web.Request) -> web.Response:
        revision = request.query.get("known", "")
        try:
            wait_s = float(request.query.get("wait", "0"))
        except ValueError:
            wait_s = math.nan
        if not 0 <= wait_s <= MAX_WAIT_S:
            return web.json_response({"error": f"wait is not from 0 to {MAX_WAIT_S:g} s"}, status=422)
        report = await watcher.wait_for_change(revision, wait_s) if wait_s and revision else watcher.report
        if report is None:
            return web.json_response({"error": "MPS has not been queried yet"}, status=503)
        return web.Response(text=report.to_json(), content_type="application/json")

    app = web.Application(middlewares=[controllers_only])
    app.router.add_get("/v1/node", get_node)
    return app
