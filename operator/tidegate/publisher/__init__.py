"""Publishes snapshots for the gateways: from caches of objects, pods and Secrets to what the xDS server sends."""
