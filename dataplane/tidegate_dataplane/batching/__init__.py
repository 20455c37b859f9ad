"""Join requests that arrived together into fewer executions of a model, without a change of their answers.

Our ONNX runner uses it inside Triton, on NumPy alone: the server's environment has neither onnx nor our own packages.
"""
