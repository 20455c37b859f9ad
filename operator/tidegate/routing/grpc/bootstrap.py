"""The bootstrap of a gRPC client that uses xDS: its xDS server, and its node id (gRFC A27)."""

from __future__ import annotations

import json


def build_bootstrap(server: str, node: str, certificates: str | None = None) -> str:
    """Return the JSON for GRPC_XDS_BOOTSTRAP_CONFIG, or for the file that GRPC_XDS_BOOTSTRAP names.

    `server` is host:port. `certificates` is a folder on the client with ca.crt, tls.crt and tls.key, which gRPC reads again
    every minute (gRFC A65); None: plain text.
    """
    credentials: dict[str, object] = {"type": "insecure"}
    if certificates is not None:
        files = {
            "ca_certificate_file": f"{certificates}/ca.crt",
            "certificate_file": f"{certificates}/tls.crt",
            "private_key_file": f"{certificates}/tls.key",
        }
        credentials = {"type": "tls", "config": {**files, "refresh_interval": "60s"}}
    servers = [{"server_uri": server, "channel_creds": [credentials], "server_features": ["xds_v3"]}]
    return json.dumps({"xds_servers": servers, "node": {"id": node}}, indent=2)
