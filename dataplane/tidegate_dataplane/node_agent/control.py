"""The node agent's control port: reports out, orders in, for clients with the controllers' certificate only."""

import math

from aiohttp import web
from pydantic import ValidationError

from tidegate_dataplane.agent.control_server import controllers_only
from tidegate_dataplane.contract.sharing import NodeOrder, NodeReport
from tidegate_dataplane.node_agent.watcher import Watcher

MAX_ORDER_BYTES = 64 << 10
MAX_WAIT_S = 30.0


def control_app(watcher: Watcher) -> web.Application:
    """Return `GET /v1/node` and `PUT /v1/order`.

    `GET /v1/node?known=<revision>&wait=<seconds>` answers as soon as the report is another one, so that whoever follows
    many nodes hears of a change at once and of nothing else.
    """

    async def get_node(request: web.Request) -> web.Response:
        known = request.query.get("known", "")
        try:
            wait_s = float(request.query.get("wait", "0"))
        except ValueError:
            wait_s = math.nan
        if not 0 <= wait_s <= MAX_WAIT_S:
            return web.json_response({"error": f"wait is not from 0 to {MAX_WAIT_S:g} s"}, status=422)
        return _answer(await watcher.newer_than(known, wait_s) if wait_s and known else watcher.report)

    async def put_order(request: web.Request) -> web.Response:
        try:
            order = NodeOrder.model_validate_json(await request.read())
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5])
            return web.json_response({"error": f"not an order: {problems}"}, status=422)
        if not await watcher.carry_out(order):
            return web.json_response({"error": f"epoch {order.epoch} is over"}, status=409)
        return _answer(watcher.report)

    app = web.Application(middlewares=[controllers_only], client_max_size=MAX_ORDER_BYTES)
    app.router.add_get("/v1/node", get_node)
    app.router.add_put("/v1/order", put_order)
    return app


def _answer(report: NodeReport | None) -> web.Response:
    if report is None:
        return web.json_response({"error": "MPS has not been asked yet"}, status=503)
    return web.Response(text=report.to_json(), content_type="application/json")
