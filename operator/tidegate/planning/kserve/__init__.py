"""Convert the InferenceServices of KServe."""
