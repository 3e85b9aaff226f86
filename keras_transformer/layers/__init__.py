"""The blocks of "Attention Is All You Need", each a Keras layer of its own."""
