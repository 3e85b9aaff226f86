"""Corpora, and the batches made of them."""
