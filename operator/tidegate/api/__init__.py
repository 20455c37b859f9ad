"""The kinds of tidegate.io/v1alpha1 as typed values, their conditions and reasons, and their CRDs."""
