"""Read one page of a list, with the traffic of its rows."""

from __future__ import annotations

from collections.abc import Collection

from tidegate.web.app_state import AppState
from tidegate.web.listing import ENDPOINTS, Measures, Plural, RowPage, RowQuery, SortOrder


def read_row_page(app: AppState, plural: Plural, query: RowQuery, within: Collection[str] | None) -> RowPage:
    """Return one page of the rows of a kind in the namespaces `within`; None: in all."""
    endpoint = ENDPOINTS.get(plural, "")

    page = app.listings[plural].get_page(query, within, _find_measures(app, endpoint, query.order))
    rows = tuple(app.traffic.add_traffic(row, endpoint) for row in page.rows)
    return RowPage(rows, page.total, page.not_well, page.number, page.pages)


def _find_measures(app: AppState, endpoint: str, order: SortOrder) -> Measures:
    """Return what rows are sorted by; nothing for other orders, as it costs 40 ms for 10,000 Inferences every 5 s."""
    match order:
        case "requests" | "-requests":
            return app.traffic.list_measures(endpoint, "requests")
        case "p99" | "-p99":
            return app.traffic.list_measures(endpoint, "p99")
        case _:
            return {}
