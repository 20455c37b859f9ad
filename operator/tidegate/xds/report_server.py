"""`GET /v1/programmed`: what each connected proxy has accepted, for the controllers."""

from __future__ import annotations

import uuid
from http import HTTPStatus

from aiohttp import web

from tidegate.xds.ledger import AckLedger


def report_application(ledger: AckLedger) -> web.Application:
    """Serves the report of `ledger` (xds.report.ProxyReport).

    The controllers ask four times a second, and ten thousand objects are a megabyte:
    so the answer carries an ETag, and one that is known already is not sent again.
    """
    process = uuid.uuid4().hex

    async def programmed(request: web.Request) -> web.Response:
        tag = f'"{process}-{ledger.edition}"'
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers={"ETag": tag})
        text = ledger.report().model_dump_json()
        return web.Response(text=text, content_type="application/json", headers={"ETag": tag})

    application = web.Application()
    application.add_routes([web.get("/v1/programmed", programmed)])
    return application
