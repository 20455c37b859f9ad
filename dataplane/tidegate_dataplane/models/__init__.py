"""Models for Triton's Python backend; each folder's model.py is copied into a version folder and runs there."""
