"""Trained models for other programs to run."""
