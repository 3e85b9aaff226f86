import pytest
import sentencepiece
import tensorflow as tf

from keras_transformer import InputError, Tokenizer
from keras_transformer.data.dates import write_dates

AWKWARD = [
    "",
    " ",
    "  two  spaces ",
    "ﬁne ½ ①",  # what NFKC takes apart
    "naïve café — “quoted”",
    "cafe\u0301",
    "日本語とEnglish",
    "مرحبا שלום",
    "emoji 👩‍👩‍👧 🇩🇪",
    "tab\tand\u00a0no-break\u200bzero width",
    "<s> </s> <unk> <pad> ▁",
    "0123456789" * 30,
]


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    directory = tmp_path_factory.mktemp("dates")
    write_dates(directory, {"train": 2000})
    return [
        line
        for ending in ("text", "iso")
        for line in (directory / f"train.{ending}").read_text("utf-8").splitlines()
    ]


@pytest.fixture(scope="module", params=["bpe", "unigram", "char"])
def tokenizer(request, lines):
    return Tokenizer.learn(lines, vocabulary_size=400, kind=request.param)


def test_python_and_graph_give_the_same_ids_and_text_on_every_line(tokenizer, lines):
    lines = lines + AWKWARD
    ids = tokenizer.encode(lines)
    in_graph = tf.function(tokenizer.tokenize)(tf.constant(lines))
    assert in_graph.to_list() == ids
    texts = tf.function(tokenizer.detokenize)(in_graph)
    assert [text.decode() for text in texts.numpy()] == tokenizer.decode(ids)


def test_what_is_encoded_can_be_decoded(tokenizer, lines):
    lines = [line.replace("\u202f", " ") for line in lines]  # the normaliser's one change
    assert tokenizer.decode(tokenizer.encode(lines)) == lines


def test_special_ids_are_where_they_belong_and_never_come_from_text(tokenizer):
    assert tokenizer.pieces([0, 1, 2, 3]) == ["<pad>", "<s>", "</s>", "<unk>"]
    assert not {0, 1, 2} & {one for ids in tokenizer.encode(AWKWARD) for one in ids}


def test_saved_and_loaded_it_gives_the_same_ids(tokenizer, lines, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.model")
    assert Tokenizer.load(tmp_path / "tokenizer.model").encode(lines) == tokenizer.encode(lines)


def test_digits_are_split_on_request(lines):
    tokenizer = Tokenizer.learn(lines, vocabulary_size=400, split_digits=True)
    assert tokenizer.pieces(tokenizer.encode(["2024"])[0])[-4:] == ["2", "0", "2", "4"]


def test_case_is_folded_on_request(lines):
    tokenizer = Tokenizer.learn(lines, 400, normalization="nmt_nfkc_cf")
    assert tokenizer.encode(["MONDAY"]) == tokenizer.encode(["monday"])


def test_a_vocabulary_too_small_for_the_alphabet_is_refused(lines):
    with pytest.raises(InputError, match=r"Change tokenizer\.vocabulary_size"):
        Tokenizer.learn(lines, vocabulary_size=20)


def test_a_model_with_other_special_ids_is_refused(lines, tmp_path):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(tmp_path / "other"), vocab_size=400,
        minloglevel=2,
    )  # fmt: skip
    with pytest.raises(InputError, match="--pad_id=0"):
        Tokenizer.load(tmp_path / "other.model")
