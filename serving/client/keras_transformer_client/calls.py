"""What can be asked: each call with its request, and how its response is read.

The same for the client that waits and for the one of asyncio: they differ in how a call is made.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_transformer_client import protos
from keras_transformer_client.tensors import STRING, TYPES, to_array, to_tensor

PREDICTION = "/tensorflow.serving.PredictionService/"
AVAILABLE = 30  # a model's state
SERVING = 1  # a server's health


@dataclasses.dataclass(frozen=True)
class Call:
    """A method of a server, what it is given, and what is made of its answer."""

    method: str
    request: Any
    response: type
    read: Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Target:
    """Which model is asked: its name and, if it must be a certain one, its version or label."""

    model: str
    version: int | None = None
    label: str | None = None

    def spec(self, signature: str = "") -> Any:
        spec = protos.ModelSpec(name=self.model, signature_name=signature)
        if self.version is not None:
            spec.version.value = self.version
        elif self.label is not None:
            spec.version_label = self.label
        return spec


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """A translation; `alignment` [tokens, source tokens] says what each token looked at."""

    text: str
    score: float
    tokens: list[str]
    source_tokens: list[str]
    alignment: np.ndarray


@dataclasses.dataclass(frozen=True)
class Token:
    """A piece of a translation as it is being decoded, and the text so far."""

    token: str
    text: str
    finished: bool
    truncated: bool


@dataclasses.dataclass(frozen=True)
class Input:
    """An input or output of a signature; a size that may vary is None."""

    dtype: str
    shape: tuple[int | None, ...] | None


def predict(target: Target, signature: str, arrays: dict[str, Any]) -> Call:
    inputs = {name: to_tensor(value) for name, value in arrays.items()}
    return Call(
        PREDICTION + "Predict",
        protos.PredictRequest(model_spec=target.spec(signature), inputs=inputs),
        protos.PredictResponse,
        lambda response: {name: to_array(tensor) for name, tensor in response.outputs.items()},
    )


def translate(
    target: Target,
    text: str | Sequence[str],
    greedy: bool = False,
    prefix: str | Sequence[str] | None = None,
    **sampling: float | None,
) -> Call:
    texts = _texts(text)
    sampling = {name: value for name, value in sampling.items() if value is not None}
    chosen = [name for name, given in
              (("greedy", greedy), ("prefix", prefix is not None), (", ".join(sampling), sampling))
              if given]  # fmt: skip
    if len(chosen) > 1:
        raise ValueError(f"{' and '.join(chosen)}: choose one way to search.")
    inputs, signature = {"text": texts}, "greedy" if greedy else "serving_default"
    if prefix is not None:
        inputs["prefix"], signature = _texts(prefix), "prefixed"
    elif sampling:
        signature = "sample"
        seed = int(sampling.get("seed", 0))
        inputs |= {
            "temperature": np.full(len(texts), sampling.get("temperature", 1.0), "float32"),
            "top_k": np.full(len(texts), sampling.get("top_k", 0), "int32"),
            "top_p": np.full(len(texts), sampling.get("top_p", 1.0), "float32"),
            "seed": np.arange(seed, seed + len(texts), dtype="int32"),
        }
    call = predict(target, signature, inputs)
    call.request.output_filter.append("text")

    def read(response):
        lines = [line.decode("utf-8") for line in call.read(response)["text"]]
        return lines[0] if isinstance(text, str) else lines

    return dataclasses.replace(call, read=read)


def n_best(target: Target, text: str | Sequence[str]) -> Call:
    call = predict(target, "n_best", {"text": _texts(text)})

    def read(response):
        found = call.read(response)
        sentences = [
            [_hypothesis(found, row, rank) for rank, score in enumerate(scores) if score > -np.inf]
            for row, scores in enumerate(found["score"])
        ]
        return sentences[0] if isinstance(text, str) else sentences

    return dataclasses.replace(call, read=read)


def score(target: Target, text: str | Sequence[str], translation: str | Sequence[str]) -> Call:
    call = predict(target, "score", {"text": _texts(text), "target": _texts(translation)})

    def read(response):
        scores = call.read(response)["score"].tolist()
        return scores[0] if isinstance(text, str) else scores

    return dataclasses.replace(call, read=read)


def stream(target: Target, text: str) -> Call:
    model = protos.Model(
        name=target.model, version=target.version or 0, version_label=target.label or ""
    )
    return Call(
        "/keras_transformer.v1.Translation/TranslateStream",
        protos.TranslateStreamRequest(model=model, text=text),
        protos.TranslateStreamResponse,
        lambda one: Token(one.token, one.text, one.finished, one.truncated),
    )


def metadata(target: Target) -> Call:
    def read(response):
        signatures = protos.SignatureDefMap.FromString(response.metadata["signature_def"].value)
        return {
            name: {
                side: {key: _describe(info) for key, info in getattr(signature, side).items()}
                for side in ("inputs", "outputs")
            }
            for name, signature in signatures.signature_def.items()
        }

    return Call(
        PREDICTION + "GetModelMetadata",
        protos.GetModelMetadataRequest(model_spec=target.spec(), metadata_field=["signature_def"]),
        protos.GetModelMetadataResponse,
        read,
    )


def health() -> Call:
    return Call(
        "/grpc.health.v1.Health/Check",
        protos.HealthCheckRequest(),
        protos.HealthCheckResponse,
        lambda response: response.status == SERVING,
    )


def status(target: Target) -> Call:
    """Whether the model is there: for a TensorFlow Serving that was started without health."""
    return Call(
        "/tensorflow.serving.ModelService/GetModelStatus",
        protos.GetModelStatusRequest(model_spec=target.spec()),
        protos.GetModelStatusResponse,
        lambda response: any(one.state == AVAILABLE for one in response.model_version_status),
    )


def _hypothesis(found, row, rank):
    tokens = [token.decode("utf-8") for token in found["tokens"][row, rank] if token]
    source = [token.decode("utf-8") for token in found["source_tokens"][row] if token]
    return Hypothesis(
        text=found["text"][row, rank].decode("utf-8"),
        score=float(found["score"][row, rank]),
        tokens=tokens,
        source_tokens=source,
        alignment=found["alignment"][row, rank, : len(tokens), : len(source)],
    )


def _describe(info):
    name = "string" if info.dtype == STRING else TYPES.get(info.dtype, (str(info.dtype),))[0]
    if info.tensor_shape.unknown_rank:
        return Input(name, None)
    return Input(name, tuple(d.size if d.size >= 0 else None for d in info.tensor_shape.dim))


def _texts(text):
    return np.array([text] if isinstance(text, str) else list(text), object)
