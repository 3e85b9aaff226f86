"""The copy mechanism: names that were never seen are copied from the source to the target."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.exporting.saved_model import export
from keras_transformer.layers.pointer import Pointer
from keras_transformer.text.unknown import UnknownWords
from tests import oracle

FRAMES = [
    ("my name is {0}", "I am called {0}"),
    ("{0} met {1} in town", "in town {1} was met by {0}"),
    ("where does {0} live", "the home of {0} is where"),
    ("{0} and {1} are friends", "{1} is a friend of {0}"),
    ("please call {0} now", "now you should call {0} please"),
]


def softmax(x):
    exponentials = np.exp(x - x.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def names(count, seed):
    draw = random.Random(seed)
    syllables = ["ka", "lo", "mi", "tu", "re", "sna", "vor", "bel", "dri", "quo", "zen", "phi"]
    return ["".join(draw.choices(syllables, k=4)).capitalize() for _ in range(count)]


def sentences(count, seed, known):
    draw = random.Random(seed)
    for _ in range(count):
        frame, people = draw.choice(FRAMES), draw.sample(known, 2)
        yield tuple(side.format(*people) for side in frame)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Pairs with names of which no two are the same, so that a vocabulary of words has none."""
    directory = tmp_path_factory.mktemp("names")
    train, test = names(6000, seed=1), names(400, seed=2)
    test = [name for name in test if name not in set(train)]
    for name, count, known in (("train", 2400, train), ("test", 200, test)):
        lines = ["\t".join(pair) for pair in sentences(count, name, known)]
        (directory / f"{name}.tsv").write_text("\n".join(lines) + "\n", "utf-8")
    return directory


def run(corpus, run_dir, copy_words):
    tables = {
        "model": dict(
            d_model=64, d_ff=128, num_heads=4, encoder_layers=1, decoder_layers=1, norm="pre",
            max_length=32, dropout=0.0, copy_words=copy_words,
        ),
        # Its 40 most frequent words are all but the names.
        "tokenizer": dict(kind="word", vocabulary_size=40),
        "data": dict(train=str(corpus / "train.tsv"), max_tokens=32, tokens_per_batch=512),
        "training": dict(epochs=5, warmup_steps=100, peak_learning_rate=3e-3, clip_norm=1.0),
        "decoding": dict(beams=2),
    }  # fmt: skip
    kt.train(kt.read_tables(tables), run_dir, say=lambda _: None)
    return kt.load_run(run_dir)


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    return run(corpus, tmp_path_factory.mktemp("runs") / "copying", copy_words=4)


def held_out(corpus):
    rows = (corpus / "test.tsv").read_text("utf-8").splitlines()
    return [tuple(row.split("\t")) for row in rows]


def exact(translate, corpus):
    sources, targets = zip(*held_out(corpus), strict=True)
    translations = translate(list(sources))
    return np.mean([one == other for one, other in zip(translations, targets, strict=True)])


def test_names_that_were_never_seen_are_copied(trained, corpus):
    assert exact(kt.Translator(*trained), corpus) > 0.95


def test_a_model_that_cannot_copy_cannot_say_them(corpus, tmp_path):
    assert exact(kt.Translator(*run(corpus, tmp_path / "run", copy_words=0)), corpus) < 0.05


def test_an_exported_model_copies_as_well(trained, corpus, tmp_path):
    model, tokenizer = trained
    export(model, tokenizer, tmp_path / "exported", kt.DecodingConfig(beams=2))
    exported = kt.ExportedTranslator(tmp_path / "exported")
    assert exact(exported, corpus) > 0.95
    signatures = tf.saved_model.load(str(tmp_path / "exported" / "1")).signatures
    line = tf.constant(["my name is Plato"])
    best = signatures["n_best"](text=line)
    assert best["text"].numpy()[0, 0].decode() == "I am called Plato"
    assert best["tokens"].numpy()[0, 0, 3].decode() == "▁Plato"
    scored = signatures["score"](text=line, target=tf.constant(["I am called Plato"]))
    np.testing.assert_allclose(scored["score"], best["score"][:, 0], atol=1e-4)
    begun = signatures["prefixed"](text=line, prefix=tf.constant(["Plato"]))
    assert begun["text"].numpy()[0].decode().startswith("Plato")
    state = signatures["start"](text=line)
    state.pop("truncated")
    while not state["finished"].numpy().all():
        said = signatures["step"](**state)
        state = {name: said.get(name, value) for name, value in state.items()}
    assert said["text"].numpy()[0].decode() == "I am called Plato"
    lines = ["Xanthippe met Alcibiades in town", "my name is Socrates", ""]
    assert exported(lines) == kt.Translator(model, tokenizer, kt.DecodingConfig(beams=2))(lines)


def test_what_is_copied_is_among_the_tokens(trained):
    ((best, *_),) = kt.Translator(*trained, kt.DecodingConfig(beams=2)).n_best(
        ["my name is Plato"], 2
    )
    assert best.text == "I am called Plato"
    assert best.tokens[:4] == ["▁I", "▁am", "▁called", "▁Plato"]
    (scored,) = kt.Translator(*trained).score(["my name is Plato"], ["I am called Plato"])
    assert scored.score == pytest.approx(best.score, abs=1e-3)
    assert scored.tokens == best.tokens


def test_ids_of_unknown_words_are_the_same_in_python_and_in_the_graph(trained):
    _, tokenizer = trained
    unknown = UnknownWords(tokenizer, slots=2)
    sources = ["Plato met Plato and Socrates or Xenophon", "my name is", "", "Plato"]
    targets = ["Socrates is Xenophon", "Plato", "", "Plato Plato"]
    words = unknown.find(sources)
    assert words == [["▁Plato", "▁Socrates"], [], [], ["▁Plato"]]
    in_graph = unknown.find_in_graph(sources)
    assert [[w.decode() for w in row if w] for row in in_graph.numpy()] == words
    size = tokenizer.vocabulary_size
    assert unknown.encode(targets, words)[0] == [size + 1, tokenizer.encode(["is"])[0][0], 3]
    for lines in (sources, targets):
        ids = unknown.tokenize(lines, in_graph)
        assert ids.to_list() == unknown.encode(lines, words)
        texts = [text.decode() for text in unknown.detokenize(ids, in_graph).numpy()]
        assert texts == unknown.decode(ids.to_list(), words)
    assert unknown.decode([[size, size + 1]], words[:1]) == ["Plato Socrates"]


def test_the_distribution_is_the_mixture_of_the_paper(normal):
    layer = Pointer(copy_words=2)
    x, logits, source = normal(2, 3, 8), normal(2, 3, 5), np.array([[4, 5, 4], [6, 2, 0]], "int32")
    attention = softmax(normal(2, 3, 3))
    found = np.exp(oracle.array(layer(x, logits, attention, source)))
    kernel, bias = map(oracle.array, layer.gate.weights)
    gate = 1 / (1 + np.exp(-(x @ kernel + bias)))
    expected = np.zeros((2, 3, 7))
    expected[..., :5] = gate * softmax(logits)
    for row, place, s in np.ndindex(2, 3, 3):
        expected[row, place, source[row, s]] += (1 - gate[row, place, 0]) * attention[row, place, s]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-5)


def test_a_model_that_copies_is_saved_and_loaded(trained, tmp_path):
    model, _ = trained
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    inputs = {"source": np.array([[5, 41, 2]], "int32"), "target": np.array([[1, 41]], "int32")}
    np.testing.assert_array_equal(loaded(inputs), model(inputs))
    assert tuple(loaded(inputs).shape) == (1, 2, model.config.vocabulary_size + 4)


def test_copying_needs_one_vocabulary_and_the_same_pieces():
    with pytest.raises(kt.InputError, match="one vocabulary"):
        kt.ModelConfig(9, target_vocabulary_size=9, copy_words=2)
    with pytest.raises(kt.InputError, match="same pieces"):
        kt.read_tables({"model": {"copy_words": 2}, "methods": {"subword_regularization": 0.1}})
