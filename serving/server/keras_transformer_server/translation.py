"""The service of our own: hypotheses with their scores and alignments, and streams of tokens."""

import contextlib

import numpy as np
from keras_transformer_client import protos

from keras_transformer_server.errors import invalid
from keras_transformer_server.predict import Predictor

TRANSLATION_SERVICE = "keras_transformer.v1.Translation"


class TranslationService:
    """See translation.proto."""

    def __init__(self, predictor: Predictor):
        self.predictor = predictor

    def methods(self) -> dict:
        return {"Translate": (protos.TranslateRequest, self.translate)}

    def streams(self) -> dict:
        return {"TranslateStream": (protos.TranslateStreamRequest, self.stream)}

    async def translate(self, request, deadline):
        signature, arrays = _ask(request)
        with self.predictor.models.use(**_chosen(request.model)) as model:
            _check_n_best(request.n_best, model)
            outputs = await self.predictor.predict(model, signature, arrays, (), deadline)
            return protos.TranslateResponse(
                sentences=[_sentence(request, outputs, row) for row in range(len(request.text))],
                version=model.version,
            )

    async def stream(self, request, deadline):
        with self.predictor.models.use(**_chosen(request.model)) as model:
            states = self.predictor.stream(model, request.text, deadline)
            async with contextlib.aclosing(states):
                async for state in states:
                    yield protos.TranslateStreamResponse(
                        token=_text(state["token"].numpy()[0]),
                        text=_text(state["text"].numpy()[0]),
                        finished=bool(state["finished"].numpy()[0]),
                        truncated=bool(state["truncated"].numpy()[0]),
                    )


def _chosen(model):
    return {
        "name": model.name,
        "version": model.version or None,
        "label": model.version_label or None,
    }


def _ask(request):
    """The signature that does what is asked for, and its inputs."""
    ways = {
        "greedy": request.greedy,
        "sampling": request.HasField("sampling"),
        "prefix": bool(request.prefix),
        "n_best": request.n_best > 1 or request.alignment,
    }
    asked = [name for name, is_asked in ways.items() if is_asked]
    if len(asked) > 1:
        raise invalid(f"{' and '.join(asked)} are given; a translation has one of them.")
    if request.n_best < 0:
        raise invalid(f"n_best is {request.n_best}; expected a number of hypotheses.")
    arrays = {"text": _bytes(request.text)}
    if request.prefix:
        if len(request.prefix) != len(request.text):
            raise invalid(
                f"prefix has {len(request.prefix)} values for {len(request.text)} texts; "
                "expected one for each."
            )
        return "prefixed", arrays | {"prefix": _bytes(request.prefix)}
    if request.HasField("sampling"):
        rows, sampling = len(request.text), request.sampling
        temperature = sampling.temperature if sampling.HasField("temperature") else 1.0
        top_p = sampling.top_p if sampling.HasField("top_p") else 1.0
        seeds = np.arange(rows) + sampling.seed
        return "sample", arrays | {
            "temperature": np.full(rows, temperature, "float32"),
            "top_k": np.full(rows, sampling.top_k, "int32"),
            "top_p": np.full(rows, top_p, "float32"),
            "seed": seeds.astype("int32"),
        }
    if asked == ["n_best"]:
        return "n_best", arrays
    return "greedy" if request.greedy else "serving_default", arrays


def _check_n_best(n_best, model):
    if n_best > 1:
        most = model.signature("n_best").outputs["text"].shape[1]
        if most is not None and n_best > most:
            raise invalid(f"n_best is {n_best}; the model was exported with {most} beams.")


def _sentence(request, outputs, row):
    sentence = protos.Sentence(truncated=bool(outputs["truncated"][row]))
    if outputs["text"].ndim == 1:
        sentence.hypotheses.add(
            text=_text(outputs["text"][row]), score=float(outputs["score"][row])
        )
        return sentence
    source = [_text(token) for token in outputs["source_tokens"][row] if token]
    if request.alignment:
        sentence.source_tokens.extend(source)
    for rank in range(min(max(request.n_best, 1), outputs["text"].shape[1])):
        score = float(outputs["score"][row, rank])
        if score == -np.inf:  # there are no more
            break
        hypothesis = sentence.hypotheses.add(text=_text(outputs["text"][row, rank]), score=score)
        if request.alignment:
            tokens = [_text(token) for token in outputs["tokens"][row, rank] if token]
            hypothesis.tokens.extend(tokens)
            for weights in outputs["alignment"][row, rank, : len(tokens), : len(source)]:
                hypothesis.alignment.add(weights=weights.tolist())
    return sentence


def _bytes(texts):
    array = np.empty(len(texts), object)
    array[:] = [text.encode("utf-8") for text in texts]
    return array


def _text(value):
    return value.decode("utf-8", "replace")
