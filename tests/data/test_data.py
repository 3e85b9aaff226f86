import gzip
import re
from pathlib import Path

import numpy as np
import pytest
from babel import Locale

from keras_transformer import InputError, Tokenizer
from keras_transformer.data.batches import Batches, bucket_lengths
from keras_transformer.data.corpus import read_pairs
from keras_transformer.data.dates import LANGUAGES, write_dates


@pytest.fixture(scope="module")
def dates(tmp_path_factory):
    directory = tmp_path_factory.mktemp("dates")
    write_dates(directory, {"train": 2000, "test": 300})
    return directory


@pytest.fixture(scope="module")
def files(dates):
    return str(dates / "train.text"), str(dates / "train.iso")


@pytest.fixture(scope="module")
def tokenizer(files):
    return Tokenizer.learn((line for pair in read_pairs(files) for line in pair), 400)


def read(path):
    return path.read_text("utf-8").split("\n")[:-1]


def test_dates_are_in_many_languages_and_in_iso_8601(dates):
    assert len({Locale.parse(language).language for language in LANGUAGES}) >= 12
    text, iso = read(dates / "train.text"), read(dates / "train.iso")
    assert len(text) == len(iso) == 2000
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", line) for line in iso)
    for months in ("September", "septembre", "сентября", "Σεπτεμβρίου", "सितंबर", "9月", "eylül"):
        assert any(months.casefold() in line.casefold() for line in text), months
    # Every date's own year is in its text, so text and ISO belong together.
    assert all(day[:4] in line for line, day in zip(text, iso, strict=True))


def test_no_date_of_the_test_is_in_the_training(dates):
    train, test = set(read(dates / "train.iso")), set(read(dates / "test.iso"))
    assert len(test) > 200
    assert not train & test


def test_the_same_seed_gives_the_same_dates(dates, tmp_path):
    write_dates(tmp_path, {"train": 2000, "test": 300})
    assert read(tmp_path / "test.text") == read(dates / "test.text")
    write_dates(tmp_path, {"train": 2000, "test": 300}, seed=2)
    assert read(tmp_path / "test.text") != read(dates / "test.text")


def test_pairs_come_from_two_files_or_a_tsv_plain_or_gzip(tmp_path):
    (tmp_path / "a.txt").write_bytes("één\r\ntwee\n".encode())
    (tmp_path / "b.txt").write_bytes(b"one\ntwo")
    (tmp_path / "ab.tsv").write_text("één\tone\ntwee\ttwo\n", "utf-8")
    for name in ("a.txt", "b.txt", "ab.tsv"):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    expected = [("één", "one"), ("twee", "two")]
    for ending in ("", ".gz"):
        assert (
            list(read_pairs((f"{tmp_path}/a.txt{ending}", f"{tmp_path}/b.txt{ending}"))) == expected
        )
        assert list(read_pairs((f"{tmp_path}/ab.tsv{ending}",))) == expected


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ((b"a\nb\n", b"x\n"), r"1.txt has 2 lines and .*2.txt has 1"),
        ((b"", b""), "no lines"),
        ((b"a\n\xff\n", b"x\ny\n"), r"1.txt, line 2: not UTF-8 \(byte 0xff at column 1\)"),
        ((b"a\n", None), r"2.txt: there is no such file"),
        ((b"a b\n",), r"1.txt, line 1: 0 tabs, but expected 1"),
        ((b"a\tb\nc\td\te\n",), r"1.txt, line 2: 2 tabs"),
    ],
)
def test_a_faulty_corpus_is_refused_with_its_place(contents, message, tmp_path):
    files = tuple(str(tmp_path / f"{number}.txt") for number in range(1, len(contents) + 1))
    for file, content in zip(files, contents, strict=True):
        if content is not None:
            Path(file).write_bytes(content)
    with pytest.raises(InputError, match=message):
        list(read_pairs(files))


def test_a_file_that_only_claims_to_be_gzip_is_refused(tmp_path):
    path = tmp_path / "a.tsv.gz"
    path.write_text("a\tb\n")
    with pytest.raises(InputError, match="not a whole gzip file"):
        list(read_pairs((str(path),)))
    path.write_bytes(gzip.compress(b"a\tb\n" * 1000)[:-9])
    with pytest.raises(InputError, match="not a whole gzip file"):
        list(read_pairs((str(path),)))


def test_buckets_are_few_and_end_with_the_longest():
    assert bucket_lengths(8) == [8]
    assert bucket_lengths(100)[-2:] == [96, 100]
    assert len(bucket_lengths(256)) < 40


def test_a_batch_holds_source_shifted_target_and_labels(files, tokenizer):
    inputs, labels = next(iter(Batches(files, tokenizer).epoch()))
    source, target, labels = (np.array(x) for x in (inputs["source"], inputs["target"], labels))
    assert source.dtype == target.dtype == labels.dtype == "int32"
    assert (target[:, 0] == 1).all()
    for row in range(len(source)):
        *words, end = source[row][source[row] > 0]
        assert end == 2
        translation = labels[row][labels[row] > 0]
        assert translation[-1] == 2
        np.testing.assert_array_equal(target[row][1 : len(translation)], translation[:-1])
        text, iso = tokenizer.decode([words, translation[:-1]])
        assert iso[:4] in text


def rows(batches):
    """All pairs of a dataset, as they are in the file."""
    for inputs, labels in batches:
        for source, label in zip(np.array(inputs["source"]), np.array(labels), strict=True):
            yield source[source > 0].tolist(), label[label > 0].tolist()


def test_an_epoch_has_every_pair_once_in_few_shapes_within_the_budget(files, tokenizer):
    batches = Batches(files, tokenizer, tokens_per_batch=512, seed=1)
    shapes = [tuple(inputs["source"].shape) for inputs, _ in batches.epoch(0)]
    assert len(shapes) == batches.steps
    assert all(size * length <= 512 for size, length in shapes)
    assert {length for _, length in shapes} <= set(bucket_lengths(128))
    assert len(set(shapes)) < 20
    sources, targets = zip(*read_pairs(files), strict=True)
    pairs = zip(tokenizer.encode(sources), tokenizer.encode(targets), strict=True)
    expected = [([*source, 2], [*target, 2]) for source, target in pairs]
    assert sorted(rows(batches.epoch(3))) == sorted(expected)


def test_most_places_hold_tokens(files, tokenizer):
    places = [np.array(inputs["source"]) for inputs, _ in Batches(files, tokenizer, seed=1).epoch()]
    assert sum((x > 0).sum() for x in places) / sum(x.size for x in places) > 0.8


def test_pairs_whose_shorter_sides_are_alike_share_a_batch(tmp_path):
    """All are of one length, so that nothing but the shorter side is left to be sorted by."""
    long, short = "abcdefghijklmnopqrst", "abc"
    path = tmp_path / "pairs.tsv"
    path.write_text(f"{long}\t{short}\n{short}\t{long}\n" * 40)
    tokenizer = Tokenizer.learn([long], 30, "char")
    lengths = {
        (inputs["source"].shape[1], labels.shape[1])
        for inputs, labels in Batches((str(path),), tokenizer, 22 * 20, seed=1).epoch()
    }
    assert lengths == {(22, 8), (8, 22)}


def test_the_order_depends_on_seed_and_epoch_alone(files, tokenizer):
    def order(seed, epoch):
        return list(rows(Batches(files, tokenizer, 512, seed=seed).epoch(epoch)))

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)
    assert order(None, 0) == order(None, 1)


def test_a_stream_can_begin_in_the_middle_of_an_epoch(files, tokenizer):
    batches = Batches(files, tokenizer, 512, seed=1)
    both = list(rows(batches.epoch(1))) + list(rows(batches.epoch(2)))
    streamed = list(rows(batches.stream(1, step=5).take(2 * batches.steps - 5)))
    assert streamed == both[-len(streamed) :]
    skipped = sum(len(labels) for _, labels in batches.epoch(1).take(5))
    assert len(both) - len(streamed) == skipped


def test_long_and_empty_pairs_are_left_out_and_counted(tmp_path, tokenizer):
    path = tmp_path / "pairs.tsv"
    path.write_text(f"1 May 2024\t2024-05-01\n{'1 ' * 200}\t2024-05-01\n\t2024-05-01\n2 May\t\n")
    batches = Batches((str(path),), tokenizer, max_tokens=64)
    assert (batches.pairs, batches.too_long, batches.empty) == (1, 1, 2)
    assert len(list(rows(batches.epoch()))) == 1
    path.write_text("\t2024-05-01\n")
    with pytest.raises(InputError, match="no pair is left: 1 have an empty side"):
        Batches((str(path),), tokenizer)
