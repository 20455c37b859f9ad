"""The bootstrap of a gRPC client that speaks xDS: where the xDS server is, and who the client is (gRFC A27)."""

from __future__ import annotations

import json


def bootstrap(server: str, node: str) -> str:
    """The JSON for GRPC_XDS_BOOTSTRAP_CONFIG, or for the file that GRPC_XDS_BOOTSTRAP names; `server` is host:port."""
    credentials = [{"type": "insecure"}]
    servers = [{"server_uri": server, "channel_creds": credentials, "server_features": ["xds_v3"]}]
    return json.dumps({"xds_servers": servers, "node": {"id": node}}, indent=2)
