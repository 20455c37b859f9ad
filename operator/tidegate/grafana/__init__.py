"""Dashboards for Grafana, made from code: what each shows is one file, and the chart has the JSON."""
