"""The control port: desired states in, reports out, for clients with the controllers' certificate only."""

from aiohttp import web
from pydantic import ValidationError

from tidegate_dataplane.agent.control_server import controllers_only
from tidegate_dataplane.agent.loop import Agent
from tidegate_dataplane.agent.shared_models import SharedModels
from tidegate_dataplane.contract import DesiredState, SharedOrders

MAX_ORDER_BYTES = 8 << 20


def control_app(agent: Agent) -> web.Application:
    """Return `PUT /v1/desired` and `GET /v1/report`."""

    async def put_desired(request: web.Request) -> web.Response:
        try:
            order = DesiredState.model_validate_json(await request.read())
        except ValidationError as error:
            return _refuse_order(error)
        accepted = agent.accept_order(order)
        return _report_response(agent, status=200 if accepted else 409)

    async def get_report(_: web.Request) -> web.Response:
        return _report_response(agent, status=200)

    app = web.Application(middlewares=[controllers_only], client_max_size=MAX_ORDER_BYTES)
    app.router.add_put("/v1/desired", put_desired)
    app.router.add_get("/v1/report", get_report)
    return app


def _report_response(agent: Agent, *, status: int) -> web.Response:
    return web.Response(text=agent.build_report().to_json(), status=status, content_type="application/json")


def shared_control_app(models: SharedModels, limit: int) -> web.Application:
    """Return `PUT /v1/shared/desired`, for at most `limit` Inferences, and `GET /v1/shared/reports`."""

    async def put_desired(request: web.Request) -> web.Response:
        try:
            orders = SharedOrders.model_validate_json(await request.read())
        except ValidationError as error:
            return _refuse_order(error)
        if len(orders.orders) > limit:
            message = f"{len(orders.orders)} Inferences are ordered, and the pod has room for {limit}: use another pod"
            return web.json_response({"error": message}, status=422)
        accepted = models.accept_orders(orders)
        return _reports_response(models, status=200 if accepted else 409)

    async def get_reports(_: web.Request) -> web.Response:
        return _reports_response(models, status=200)

    app = web.Application(middlewares=[controllers_only], client_max_size=MAX_ORDER_BYTES)
    app.router.add_put("/v1/shared/desired", put_desired)
    app.router.add_get("/v1/shared/reports", get_reports)
    return app


def _refuse_order(error: ValidationError) -> web.Response:
    problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5])
    return web.json_response({"error": f"not a desired state: {problems}"}, status=422)


def _reports_response(models: SharedModels, *, status: int) -> web.Response:
    return web.Response(text=models.build_report().to_json(), status=status, content_type="application/json")
