"""Forecasts of request rates: what comes next, from what came before."""
