"""A trained model as a SavedModel for TensorFlow Serving.

DIR/batching_parameters.txt                            for tensorflow_model_server
DIR/<version>/saved_model.pb, variables/               the model, with vocabulary and search inside
DIR/<version>/assets.extra/tf_serving_warmup_requests  what a server runs before it says it is ready
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from keras_transformer.config import DecodingConfig
from keras_transformer.errors import InputError
from keras_transformer.exporting.signatures import Signatures
from keras_transformer.exporting.weights import copy_for_serving
from keras_transformer.generation.generate import Ensemble
from keras_transformer.generation.translate import check_vocabulary
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.tokenizer import Tokenizer

# Requests that come within 2 ms of each other share an execution. All sizes are powers of two, so
# that a server meets few shapes. `pad_variable_length_inputs` is for the ids of `decode_ids`.
BATCHING = """\
max_batch_size { value: 64 }
batch_timeout_micros { value: 2000 }
max_enqueued_batches { value: 1000 }
num_batch_threads { value: 2 }
allowed_batch_sizes: 1
allowed_batch_sizes: 2
allowed_batch_sizes: 4
allowed_batch_sizes: 8
allowed_batch_sizes: 16
allowed_batch_sizes: 32
allowed_batch_sizes: 64
pad_variable_length_inputs: true
"""


def export(
    model: Transformer | Ensemble | Sequence[Transformer],
    tokenizer: Tokenizer,
    path: str | Path,
    decoding: DecodingConfig | None = None,
    version: int | None = None,
    dtype: str = "float32",
) -> Path:
    """Writes a SavedModel that needs `tensorflow` and `tensorflow_text` alone.

    Args:
        model: a `Transformer`, or several of one vocabulary, whose probabilities are averaged.
        tokenizer: the one that they were trained with.
        path: the model's directory, in which each version has its own.
        decoding: how the signatures search; by default with 4 beams. Its temperature, top_k, top_p
            and seed are not used: the signature `sample` takes its own.
        version: the number of the version; by default one more than the last.
        dtype: a Keras dtype policy. In float32 whatever the training was in: few processors are
            faster in bfloat16.

    Returns:
        The directory of the version.
    """
    models = model.models if isinstance(model, Ensemble) else model
    models = models if isinstance(models, Sequence) else [models]
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise InputError(f"{path}: this is a file; a model needs a directory.")
    if version is not None and version < 1:
        raise InputError(f"version {version}: versions are counted from 1.")
    directory = path / str(version or 1 + max(versions(path), default=0))
    if directory.exists():
        raise InputError(f"{directory}: this version is there already. Choose another --version.")
    for one in models:
        check_vocabulary(one, tokenizer)
    models = [copy_for_serving(one, dtype) for one in models]
    path.mkdir(parents=True, exist_ok=True)
    signatures = Signatures(
        models[0] if len(models) == 1 else Ensemble(models), tokenizer, decoding or DecodingConfig()
    )
    # A server that watches the directory must not find half a model.
    part = tempfile.mkdtemp(prefix=".writing-", dir=path)
    try:
        tf.saved_model.save(signatures, part, signatures=signatures.all())
        _write_warmup(Path(part) / "assets.extra", tokenizer)
        if not (path / "batching_parameters.txt").exists():  # it may have been changed
            (path / "batching_parameters.txt").write_text(BATCHING)
        os.chmod(part, 0o755)
        os.rename(part, directory)
    except BaseException:
        shutil.rmtree(part)
        raise
    return directory


def versions(path: str | Path) -> list[int]:
    """The numbers of the versions that a directory holds."""
    path = Path(path)
    if not path.is_dir():
        return []
    return sorted(
        int(found.name)
        for found in path.iterdir()
        if found.name.isdecimal() and (found / "saved_model.pb").exists()
    )


def _write_warmup(directory, tokenizer):
    """Requests that make a server load, trace and allocate before the first real one comes."""
    (line,) = tokenizer.decode([range(4, min(24, tokenizer.vocabulary_size))])
    directory.mkdir()
    with tf.io.TFRecordWriter(str(directory / "tf_serving_warmup_requests")) as file:
        for signature in ("serving_default", "greedy"):
            for rows in (1, 8, 64):
                request = predict_pb2.PredictRequest()
                request.model_spec.signature_name = signature
                request.inputs["text"].CopyFrom(tf.make_tensor_proto([line] * rows))
                log = prediction_log_pb2.PredictLog(request=request)
                file.write(prediction_log_pb2.PredictionLog(predict_log=log).SerializeToString())
