"""Whole models, made of the layers."""
