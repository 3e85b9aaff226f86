import pytest

from keras_transformer import InputError, ModelConfig, RunConfig


@pytest.fixture
def config(tmp_path):
    """Writes a config file and reads it with overrides."""

    def read(text, *overrides):
        path = tmp_path / "config.toml"
        path.write_text(text, "utf-8")
        return RunConfig.read(path, overrides)

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


def test_tables_round_trip(config):
    read = config('[model]\npreset = "tiny"\n', "data.train_source=a", "data.train_target=b")
    assert RunConfig.from_tables(read.to_tables(), "again") == read


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[modle]\n", r"unknown table \[modle\]. Did you mean model\?"),
        ("model = 3\n", r"model is a table"),
        ("[model]\nd_modle = 3\n", r"unknown key model.d_modle. Did you mean d_model\?"),
        ("[training]\nfoo = 3\n", r"unknown key training.foo. Known: epochs, seed"),
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
        ("[training\n", r"not valid TOML"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_remedy(config, text, message):
    with pytest.raises(InputError, match=rf"config.toml: .*{message}"):
        config(text)


@pytest.mark.parametrize("override", ["epochs=3", "training.epochs", "training=3"])
def test_an_override_that_makes_no_sense_is_refused(config, override):
    with pytest.raises(InputError, match=r"expected table.key=value"):
        config("", override)


def test_what_python_is_given_is_checked_as_well():
    with pytest.raises(InputError, match="Unknown preset 'tinny'"):
        ModelConfig.preset("tinny", vocabulary_size=100)
    with pytest.raises(InputError, match=r"model.positions is 'rotory'. Did you mean rotary"):
        ModelConfig(vocabulary_size=100, positions="rotory")
