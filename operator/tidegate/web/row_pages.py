"""Read one page of a list, with the traffic of its rows."""

from __future__ import annotations

from collections.abc import Collection

from tidegate.web.app_state import AppState
from tidegate.web.listing import ENDPOINTS, Plural, RowPage, RowQuery


def read_row_page(app: AppState, plural: Plural, query: RowQuery, within: Collection[str] | None) -> RowPage:
    """Return one page of the rows of a kind in the namespaces `within`; None: in all."""
    endpoint = ENDPOINTS.get(plural, "")

    measures = app.traffic.list_measures(endpoint, "p99" if query.order.endswith("p99") else "requests")
    page = app.listings[plural].get_page(query, within, measures)
    rows = tuple(app.traffic.add_traffic(row, endpoint) for row in page.rows)
    return RowPage(rows, page.total, page.not_well, page.number, page.pages)
