"""Ask the model `double` over gRPC: python ask.py [HOST:PORT [NAMESPACE]]."""

import sys

import numpy as np
import tritonclient.grpc as triton

address = sys.argv[1] if len(sys.argv) > 1 else "localhost:8080"
namespace = sys.argv[2] if len(sys.argv) > 2 else "default"
client = triton.InferenceServerClient(address)
tensor = triton.InferInput("x", [2, 1], "FP32")
tensor.set_data_from_numpy(np.array([[21], [4]], dtype=np.float32))
answer = client.infer("double", [tensor], headers={"x-tidegate-access": f"{namespace}/double"})
doubled = answer.as_numpy("y") if answer is not None else None
assert doubled is not None
print(doubled.ravel())
