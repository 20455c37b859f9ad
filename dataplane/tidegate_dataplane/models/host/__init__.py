"""Run ONNX artefacts on servers without an ONNX Runtime backend."""
