"""Buckets of shapes for which an engine is compiled, and the way of a request to the one that fits: in the ONNX runner.

It runs in Triton's Python, which has no pydantic; the compiler reads and writes the same files.
"""
