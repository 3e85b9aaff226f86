import json
import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import prediction_log_pb2

import keras_transformer as kt
from keras_transformer.exporting.signatures import Signatures
from tests.conftest import make_model

WORDS = ["to", "be", "or", "not", "that", "is", "the", "question", "nobler", "mind", "suffer"]
LINES = ["to be", "that is the question", "", "or not to be", "to", "mind the mind", "nobler"]


@pytest.fixture(scope="module")
def tokenizer(exported):
    return exported.tokenizer


@pytest.fixture(scope="module")
def model(exported):
    return exported.model


@pytest.fixture(scope="module")
def directory(exported):
    return exported.directory


@pytest.fixture(scope="module")
def loaded(exported):
    return exported.load()


@pytest.fixture(scope="module")
def run(loaded):
    """Calls a signature; returns a dict of NumPy arrays."""

    def run(signature, text=None, **inputs):
        if text is not None:
            inputs["text"] = tf.constant(text, tf.string)
        found = loaded.signatures[signature](**inputs)
        return {name: tensor.numpy() for name, tensor in found.items()}

    return run


def texts(found):
    return [text.decode("utf-8") for text in found["text"]]


def test_signatures_are_named_and_typed(loaded):
    def describe(specs):
        return {name: (spec.dtype.name, spec.shape.rank) for name, spec in specs.items()}

    text, scored = {"text": ("string", 1)}, {"text": ("string", 1), "score": ("float32", 1)}
    scored |= {"lengths": ("int32", 1), "truncated": ("bool", 1)}
    ids = {"ids": ("int32", 2), "lengths": ("int32", 1)}
    expected = {
        "serving_default": (text, scored),
        "greedy": (text, scored),
        "n_best": (
            text,
            {
                "text": ("string", 2), "score": ("float32", 2), "tokens": ("string", 3),
                "source_tokens": ("string", 2), "alignment": ("float32", 4),
                "truncated": ("bool", 1),
            },
        ),
        "sample": (
            text | {"temperature": ("float32", 1), "top_k": ("int32", 1), "top_p": ("float32", 1),
                    "seed": ("int32", 1)},
            scored,
        ),
        "prefixed": (text | {"prefix": ("string", 1)}, scored),
        "score": (
            text | {"target": ("string", 1)},
            {"score": ("float32", 1), "token_score": ("float32", 2), "tokens": ("string", 2),
             "truncated": ("bool", 1)},
        ),
        "decode_ids": (ids, ids | {"score": ("float32", 1), "truncated": ("bool", 1)}),
    }  # fmt: skip
    expected["decode_ids_compiled"] = expected["decode_ids"]
    for name, (inputs, outputs) in expected.items():
        signature = loaded.signatures[name]
        assert describe(signature.structured_input_signature[1]) == inputs, name
        found = {key: (tensor.dtype.name, tensor.shape.rank)
                 for key, tensor in signature.structured_outputs.items()}  # fmt: skip
        assert found == outputs, name
    assert set(loaded.signatures) == {*expected, "start", "step"}


def test_the_model_runs_without_this_package_and_keras(directory, model, tokenizer, tmp_path):
    """On every line of a file, as in Python."""
    random = np.random.default_rng(1)
    lines = [" ".join(random.choice(WORDS, random.integers(0, 9))) for _ in range(60)]
    script = Path(__file__).parent / "run_alone.py"
    for signature, decoding in (
        ("serving_default", kt.DecodingConfig()),
        ("greedy", kt.DecodingConfig(beams=1)),
    ):
        done = subprocess.run(
            [sys.executable, str(script), str(directory), signature],
            input=json.dumps(lines), capture_output=True, text=True, check=True, cwd=tmp_path,
        )  # fmt: skip
        found = json.loads(done.stdout)
        translator = kt.Translator(model, tokenizer, decoding)
        assert found["text"] == translator(lines)
        scores = [best[0].score for best in translator.n_best(lines, 1)]
        np.testing.assert_allclose(found["score"], scores, atol=1e-4)


def test_saved_model_cli_shows_and_runs_it(directory, run, tmp_path):
    code = (
        "import tensorflow_text; from tensorflow.python.tools import saved_model_cli as c; c.main()"
    )

    def saved_model_cli(*arguments):
        command = [sys.executable, "-c", code, *arguments, "--dir", str(directory)]
        tags = ["--tag_set", "serve", "--signature_def", "serving_default"]
        return subprocess.run(
            command + tags, capture_output=True, text=True, check=True, cwd=tmp_path
        )

    shown = saved_model_cli("show").stdout
    assert re.search(r"inputs\['text'\] tensor_info:\s+dtype: DT_STRING", shown)
    assert re.search(r"outputs\['score'\] tensor_info:\s+dtype: DT_FLOAT", shown)
    saved_model_cli("run", "--input_exprs", "text=['or not to be']", "--outdir", str(tmp_path))
    (found,) = np.load(tmp_path / "text.npy", allow_pickle=True)
    assert found.decode() == texts(run("serving_default", ["or not to be"]))[0]


def functions_of(directory, signature):
    """All functions that a signature calls, by walking the SavedModel's library."""
    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString((directory / "saved_model.pb").read_bytes())
    (graph,) = saved.meta_graphs
    library = {one.signature.name: one for one in graph.graph_def.library.function}
    output = next(iter(graph.signature_def[signature].outputs.values())).name.split(":")[0]
    (node,) = [node for node in graph.graph_def.node if node.name == output]
    waiting, reached = [node.attr["f"].func.name], {}
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached[name] = library[name]
            for node in library[name].node_def:
                for value in node.attr.values():
                    calls = [value.func.name, *(one.name for one in value.list.func)]
                    waiting += [call for call in calls if call in library]
    return reached.values()


def needs_xla(functions):
    return any(
        function.attr["_XlaMustCompile"].b or any("Xla" in node.op for node in function.node_def)
        for function in functions
    )


def test_only_the_compiled_twin_needs_xla(directory):
    plain = ["serving_default", "greedy", "n_best", "sample", "prefixed", "score", "decode_ids"]
    for signature in [*plain, "start", "step"]:
        assert not needs_xla(functions_of(directory, signature)), signature
    assert needs_xla(functions_of(directory, "decode_ids_compiled"))


def test_an_empty_batch_has_an_empty_result(run):
    nothing = tf.zeros([0], tf.string)
    for signature in ("serving_default", "greedy", "n_best"):
        for name, found in run(signature, nothing).items():
            assert found.shape[0] == 0, (signature, name)
    assert texts(run("prefixed", nothing, prefix=nothing)) == []
    assert run("score", nothing, target=nothing)["token_score"].shape[0] == 0
    parameters = dict(temperature=[1.0], top_k=[0], top_p=[1.0], seed=[1])
    assert texts(run("sample", nothing, **parameters)) == []
    for signature in ("decode_ids", "decode_ids_compiled"):
        found = run(signature, ids=np.zeros((0, 3), "int32"), lengths=np.zeros(0, "int32"))
        assert found["ids"].shape[0] == found["score"].shape[0] == 0
    begun = run("start", nothing)
    assert begun.pop("truncated").shape == (0,)
    assert run("step", **begun)["text"].shape == (0,)


BAD = {
    "empty": b"",
    "spaces": b"  \t  ",
    "not UTF-8": b"to \xff\xfe be",
    "long": b"to be or not " * 2500,
    "unknown script": "生存还是毁灭".encode(),
    "nul": b"to\x00be",
}


@pytest.mark.parametrize("signature", ["serving_default", "greedy", "n_best", "sample", "prefixed"])
def test_bad_input_has_its_stated_result_and_no_effect_on_its_neighbours(run, signature):
    rows = ["or not to be", *BAD.values(), "that is"]
    more = {}
    if signature == "sample":
        more = dict(temperature=[0.7], top_k=[0], top_p=[1.0], seed=[3])
    if signature == "prefixed":
        more = dict(prefix=[b"be"] * len(rows))
    found = run(signature, rows, **more)
    for row, text in enumerate(rows):
        alone_more = {name: values[:1] for name, values in more.items()}
        alone = run(signature, [text], **alone_more)
        assert np.array_equal(found["text"][row], alone["text"][0]), text[:20]
        np.testing.assert_allclose(found["score"][row], alone["score"][0], atol=1e-4)
    names = list(BAD)
    for name in ("empty", "spaces"):
        row = 1 + names.index(name)
        best = found["text"][row].flat[0] if signature == "n_best" else found["text"][row]
        assert best == b""
        assert np.max(found["score"][row]) == 0
    assert found["truncated"].tolist() == [row == 1 + names.index("long") for row in range(8)]
    same = ["to be or not " * 2500, ("to be or not " * 20)[:47]]  # what is read of it
    cut = run(signature, same, **{name: values[:2] for name, values in more.items()})
    assert np.array_equal(cut["text"][0], cut["text"][1])
    replaced = run(signature, ["to \ufffd\ufffd be"], **{n: v[:1] for n, v in more.items()})
    assert np.array_equal(found["text"][1 + names.index("not UTF-8")], replaced["text"][0])


def test_bad_pairs_are_scored(run):
    found = run("score", ["to be", *BAD.values()], target=["or", *reversed(BAD.values())])
    assert np.isfinite(found["score"]).all()
    assert found["truncated"].tolist() == [False, False, False, True, True, False, False]
    alone = run("score", ["to be"], target=["or"])
    np.testing.assert_allclose(found["score"][0], alone["score"][0], atol=1e-4)
    assert alone["tokens"][0].tolist()[-1] == b"</s>"
    np.testing.assert_allclose(
        alone["score"], alone["token_score"].sum(axis=1) / (9 / 6) ** 0.6, rtol=1e-4
    )


def test_scores_and_alignments_are_those_of_python(run, model, tokenizer):
    translator = kt.Translator(model, tokenizer)
    lines = [line for line in LINES if line]
    found = run("n_best", lines)
    for row, hypotheses in enumerate(translator.n_best(lines, 4)):
        assert [text.decode() for text in found["text"][row]] == [one.text for one in hypotheses]
        for rank, hypothesis in enumerate(hypotheses):
            tokens = [token.decode() for token in found["tokens"][row, rank] if token]
            assert tokens == hypothesis.tokens
            source = [token for token in found["source_tokens"][row] if token]
            alignment = found["alignment"][row, rank, : len(tokens)]
            np.testing.assert_allclose(alignment[:, : len(source)], hypothesis.alignment, atol=1e-4)
            assert not alignment[:, len(source) :].any()
    targets = ["be", "or", "not to be", "is", "mind", "to suffer"]
    scored = run("score", lines, target=targets)
    expected = translator.score(lines, targets)
    np.testing.assert_allclose(scored["score"], [one.score for one in expected], atol=1e-4)


def test_ids_are_decoded_as_their_text_is(run, tokenizer):
    lines = [line for line in LINES if line]
    encoded = tokenizer.encode(lines)
    lengths = np.array([len(ids) for ids in encoded], "int32")
    # What a server's batching pads with is not 0 but the first element.
    ids = np.full((len(lines), lengths.max() + 3), encoded[0][0], "int32")
    for row, each in enumerate(encoded):
        ids[row, : len(each)] = each
    expected = run("serving_default", lines)
    for signature in ("decode_ids", "decode_ids_compiled"):
        found = run(signature, ids=ids, lengths=lengths)
        written = [row[:length] for row, length in zip(found["ids"], found["lengths"], strict=True)]
        assert tokenizer.decode(written) == texts(expected)
        np.testing.assert_allclose(found["score"], expected["score"], atol=1e-4)


@pytest.mark.parametrize("signature", ["decode_ids", "decode_ids_compiled"])
def test_ids_that_are_none_are_unknown(run, signature):
    strange = run(signature, ids=[[5, 9999, -4, 1, 6]], lengths=[5])
    unknown = run(signature, ids=[[5, 3, 3, 3, 6]], lengths=[99])
    np.testing.assert_array_equal(strange["ids"], unknown["ids"])


def test_the_compiled_twin_sees_few_shapes(model, tokenizer):
    """Once for each pair of a power of two of rows and a bucket of lengths."""
    signatures = Signatures(model, tokenizer, kt.DecodingConfig(beams=1, max_length=1))
    seen = []

    def record(source):
        seen.append(tuple(source.shape))
        return signatures._search(source)

    signatures._search_compiled = record
    decode = Signatures.decode_ids_compiled.python_function
    for rows, length in [(1, 1), (3, 5), (4, 7), (3, 8), (5, 30), (8, 31), (2, 99)]:
        ids, lengths = tf.fill([rows, length], 5), tf.fill([rows], length)
        assert decode(signatures, ids, lengths)["ids"].shape[0] == rows
    assert seen == [(1, 8), (4, 8), (4, 8), (4, 12), (8, 32), (8, 32), (2, 48)]


def test_drawing_depends_on_its_parameters_row_by_row(run):
    parameters = dict(temperature=[1.5], top_k=[0], top_p=[1.0])
    seeds = np.arange(6, dtype="int32")
    drawn = texts(run("sample", ["that is"] * 6, **parameters, seed=seeds))
    assert len(set(drawn)) > 3
    assert drawn == texts(run("sample", ["that is"] * 6, **parameters, seed=seeds))
    assert texts(run("sample", ["that is"], **parameters, seed=[4])) == [drawn[4]]
    cold = dict(temperature=[0.0, 1.0, 1.0], top_k=[0, 1, 0], top_p=[1.0, 1.0, 1e-6], seed=[1])
    greedy = run("greedy", ["that is"])
    found = run("sample", ["that is"] * 3, **cold)
    assert texts(found) == texts(greedy) * 3
    np.testing.assert_allclose(found["score"], greedy["score"].repeat(3), atol=1e-4)


def test_inputs_that_do_not_fit_each_other_are_refused_with_the_reason(run):
    drawing = dict(temperature=[1.0, 2.0], top_k=[0], top_p=[1.0], seed=[1])
    for name, inputs in {
        "temperature": ("sample", ["a"] * 3, drawing),
        "top_k": ("sample", ["a"] * 3, drawing | dict(temperature=[1.0], top_k=[])),
        "prefix": ("prefixed", ["a"] * 3, dict(prefix=["b"])),
        "target": ("score", ["a"] * 3, dict(target=["b"] * 2)),
        "lengths": ("decode_ids", None, dict(ids=[[5, 6], [7, 8]], lengths=[2])),
    }.items():
        signature, text, more = inputs
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"{name}: give one"):
            run(signature, text, **more)


def test_streamed_text_grows_to_what_greedy_search_writes(run):
    given = run("start", LINES)
    assert not given.pop("truncated").any()
    heard, tokens = [], []
    while not given["finished"].all():
        found = run("step", **given)
        tokens.append([token.decode() for token in found.pop("token")])
        heard.append([text.decode() for text in found.pop("text")])
        given |= found
    greedy = run("greedy", LINES)
    assert heard[-1] == texts(greedy)
    for row, length in enumerate(greedy["lengths"]):
        written = [token[row] for token in tokens]
        assert "".join(written[:length]).replace("▁", " ").split() == heard[-1][row].split()
        assert set(written[length:]) <= {"</s>", ""}
    assert texts(run("step", **given)) == heard[-1]  # once too often does no harm
    assert len(heard) > 5
    assert all(new.startswith(old.rstrip()) for old, new in zip(heard[3], heard[4], strict=True))


def test_warm_up_requests_are_for_signatures_that_run(directory, run):
    path = directory / "assets.extra" / "tf_serving_warmup_requests"
    logs = [prediction_log_pb2.PredictionLog.FromString(record.numpy())
            for record in tf.data.TFRecordDataset(str(path))]  # fmt: skip
    seen = set()
    for log in logs:
        request = log.predict_log.request
        rows = tf.make_ndarray(request.inputs["text"])
        seen.add((request.model_spec.signature_name, len(rows)))
        found = run(request.model_spec.signature_name, rows[:2])
        assert all(len(text) for text in found["text"])
    assert {("serving_default", 1), ("greedy", 64)} <= seen


def test_batching_parameters_are_in_the_form_that_the_server_reads(directory):
    text = (directory.parent / "batching_parameters.txt").read_text()
    for line in text.splitlines():
        assert re.fullmatch(r"\w+ \{ value: \d+ \}|\w+: (\d+|true)", line), line
    sizes = [int(size) for size in re.findall(r"allowed_batch_sizes: (\d+)", text)]
    # The server insists that the last allowed size is the largest batch.
    assert sizes == sorted(sizes)
    assert f"max_batch_size {{ value: {sizes[-1]} }}" in text


def test_versions_count_up_and_are_not_overwritten(tmp_path, tokenizer, monkeypatch):
    from keras_transformer.exporting import saved_model

    def save(module, path, signatures):
        Path(path, "saved_model.pb").touch()

    monkeypatch.setattr(tf.saved_model, "save", save)
    monkeypatch.setattr(saved_model.Signatures, "all", lambda self: {})
    tiny = make_model(tokenizer)
    assert kt.export(tiny, tokenizer, tmp_path).name == "1"
    assert kt.export(tiny, tokenizer, tmp_path, version=7).name == "7"
    assert kt.export(tiny, tokenizer, tmp_path).name == "8"
    with pytest.raises(kt.InputError, match="7: this version is there already"):
        kt.export(tiny, tokenizer, tmp_path, version=7)

    def fail(module, path, signatures):
        raise RuntimeError("no space")

    monkeypatch.setattr(tf.saved_model, "save", fail)
    with pytest.raises(RuntimeError, match="no space"):
        kt.export(tiny, tokenizer, tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["1", "7", "8", "batching_parameters.txt"]


def test_an_ensemble_in_mixed_precision_is_exported_in_float32(model, tokenizer, tmp_path):
    half = kt.Transformer(model.config, dtype="mixed_bfloat16")
    half.set_weights(make_model(tokenizer, seed=8).get_weights())
    whole = make_model(tokenizer, seed=8)
    assert keras.config.dtype_policy().name == "float32"
    decoding = kt.DecodingConfig(beams=2, length_penalty=0.0)
    kt.export(kt.Ensemble([model, half]), tokenizer, tmp_path, decoding)
    exported = kt.ExportedTranslator(tmp_path, lines_per_batch=3)
    expected = kt.Translator([model, whole], tokenizer, decoding)
    assert exported(LINES) == expected(LINES)
    assert exported.path == tmp_path / "1"


def test_a_prefix_that_does_not_fit_is_reported(model, tokenizer):
    signatures = Signatures(model, tokenizer, kt.DecodingConfig(beams=1, max_length=4))
    found = signatures.prefixed(["to be"] * 2, ["to b", "to be or"])
    assert found["truncated"].numpy().tolist() == [True, True]  # with the space in front
    found = signatures.prefixed(["to be"] * 2, ["to", ""])
    assert found["truncated"].numpy().tolist() == [False, False]


def test_where_no_model_was_exported_there_is_an_error(tmp_path):
    with pytest.raises(kt.InputError, match="no exported model is there"):
        kt.ExportedTranslator(tmp_path)
