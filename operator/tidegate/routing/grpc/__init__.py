"""Routing IR → the part of xDS that gRPC clients understand by themselves, without a proxy."""
