"""Rewrite ONNX graphs so that they compute the same answers in less time; pure functions from model to model."""
