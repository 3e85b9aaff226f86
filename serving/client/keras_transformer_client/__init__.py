"""Asks a translation server with TensorFlow Serving's API, without TensorFlow."""

from keras_transformer_client.calls import Hypothesis, Input, Token
from keras_transformer_client.client import AsyncClient, Client
from keras_transformer_client.connection import CallError

__all__ = ["AsyncClient", "CallError", "Client", "Hypothesis", "Input", "Token"]
