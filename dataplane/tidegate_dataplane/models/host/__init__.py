"""Runs ONNX artefacts on servers that have no ONNX Runtime backend of their own."""
