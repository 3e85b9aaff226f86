"""What `model.compile` and `model.fit` are given, and the run that calls them."""
