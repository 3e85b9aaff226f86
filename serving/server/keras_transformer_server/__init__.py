"""Serves SavedModels with TensorFlow Serving's API; knows nothing of how they were made."""
