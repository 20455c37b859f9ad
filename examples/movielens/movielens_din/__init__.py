"""The MovieLens example: train DIN on real ratings, export it to ONNX, publish it for Tidegate to serve."""
