"""Compute what pages and API show of the fleet, as values that are independent of HTTP."""
