"""The rendering of the routing IR for gRPC clients that use xDS without a proxy."""
