"""The xDS server: snapshots in, Envoy's aggregated discovery streams out, and a ledger of what proxies accepted."""
