import pytest

from keras_transformer import InputError, ModelConfig, read_config, read_tables
from keras_transformer.config_file import to_tables, write_config


@pytest.fixture
def config(tmp_path):
    """Writes a config file and reads it with overrides."""

    def read(text, *overrides):
        path = tmp_path / "config.toml"
        path.write_text(text, "utf-8")
        return read_config(path, overrides)

    return read


def test_a_preset_can_be_changed_field_by_field(config):
    read = config('[model]\npreset = "tiny"\ndropout = 0.3\n[tokenizer]\nvocabulary_size = 9000\n')
    assert (read.model.d_model, read.model.encoder_layers, read.model.dropout) == (128, 4, 0.3)
    assert read.model.vocabulary_size == 9000


def test_overrides_win_and_are_read_as_toml_or_as_text(config):
    read = config(
        "[training]\nepochs = 3\n",
        "training.epochs=7",
        "training.peak_learning_rate=1e-3",
        "model.preset=small",
        "model.gated=true",
        "data.train=some/file.tsv",
    )
    assert read.training.epochs == 7
    assert read.training.peak_learning_rate == 1e-3
    assert (read.model.d_model, read.model.gated) == (256, True)
    assert read.data.files("train") == ("some/file.tsv",)


def test_tables_and_files_round_trip(config, tmp_path):
    read = config('[model]\npreset = "tiny"\n', "data.train_source=a", "data.train_target=b")
    assert read_tables(to_tables(read)) == read
    write_config(read, tmp_path / "again.toml")
    assert read_config(tmp_path / "again.toml") == read


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[modle]\n", r"unknown table \[modle\]. Did you mean model\?"),
        ("model = 3\n", r"model is a table"),
        ("[model]\nd_modle = 3\n", r"unknown key model.d_modle. Did you mean d_model\?"),
        ("[training]\nfoo = 3\n", r"unknown key training.foo. Known: epochs, max_minutes"),
        ('[model]\nd_model = "big"\n', r"model.d_model is 'big'; expected a whole number"),
        ("[model]\nd_model = true\n", r"model.d_model is True; expected a whole number"),
        ("[model]\ngated = 1\n", r"model.gated is 1; expected true or false"),
        ("[model]\nd_model = 100\n", r"choose a multiple of 16"),
        ("[model]\ndropout = 1.0\n", r"model.dropout is 1.0; expected at least 0 and below 1"),
        ('[model]\nnorm = "pro"\n', r"model.norm is 'pro'. Did you mean"),
        ('[model]\nencoder_heads = "dott"\n', r"model.encoder_heads: .*Did you mean: dot"),
        ('[model]\nactivation = "reluu"\n', r"model.activation: .*reluu"),
        ("[model]\nvocabulary_size = 9\n", r"set tokenizer.vocabulary_size"),
        ('[model]\npreset = "huge"\n', r"choose tiny, small, base, big"),
        ('[data]\ntrain_source = "a"\n', r"both data.train_source and data.train_target"),
        ("[data]\nmax_tokens = 9999\n", r"would not fit into a batch"),
        ("[training]\nepochs = 0\n", r"training.epochs is 0; expected at least 1"),
        ("[training]\nseed = -1\n", r"training.seed is -1; expected at least 0"),
        ('[model]\npreset = ["tiny"]\n', r"choose tiny, small, base, big"),
        ("[model]\nmax_length = 16\n", r"data.max_tokens is 128, more than model.max_length=16"),
        ("[training\n", r"not valid TOML"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_remedy(config, text, message):
    with pytest.raises(InputError, match=rf"config.toml.*: .*{message}"):
        config(text)


def test_the_line_of_a_mistake_is_named(config):
    text = "[model]\nd_ff = 8\n\n[training]\n# epochs = 1\nepochs = 0\n"
    with pytest.raises(InputError, match=r"config.toml, line 6: training.epochs is 0"):
        config(text)
    with pytest.raises(InputError, match=r"config.toml, line 3: unknown table \[dada\]"):
        config("[model]\n\n[dada]\n")


def test_an_override_of_the_files_stands_for_all_of_them(config):
    two = '[data]\ntrain_source = "a"\ntrain_target = "b"\n'
    assert config(two, "data.train=pairs.tsv").data.files("train") == ("pairs.tsv",)
    one = '[data]\ntrain = "pairs.tsv"\n'
    files = config(one, "data.train_source=a", "data.train_target=b").data.files("train")
    assert files == ("a", "b")
    with pytest.raises(InputError, match="give either"):
        config(one, "data.train_source=a")
    with pytest.raises(InputError, match="give either"):
        config(two, "data.train=pairs.tsv", "data.train_source=a")


def test_a_mistake_in_an_override_is_not_blamed_on_the_file(config):
    with pytest.raises(InputError, match=r"^override 'training.epoch=3': unknown key"):
        config("[training]\nepochs = 1\n", "training.epoch=3")
    with pytest.raises(InputError, match=r"^override 'model.dropout=2': model.dropout is 2"):
        config("[model]\ndropout = 0.1\n", "model.dropout=2")
    with pytest.raises(InputError, match=r"^override 'trainig.epochs=3': unknown table"):
        config("", "trainig.epochs=3")


@pytest.mark.parametrize("override", ["epochs=3", "training.epochs", "training=3"])
def test_an_override_that_makes_no_sense_is_refused(config, override):
    with pytest.raises(InputError, match=r"expected table.key=value"):
        config("", override)


def test_what_python_is_given_is_checked_as_well():
    with pytest.raises(InputError, match="Unknown preset 'tinny'"):
        ModelConfig.preset("tinny", vocabulary_size=100)
    with pytest.raises(InputError, match=r"model.positions is 'rotory'. Did you mean rotary"):
        ModelConfig(vocabulary_size=100, positions="rotory")
