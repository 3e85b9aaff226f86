from keras_transformer import demo as demo_module
from keras_transformer.demo import demo

SMALL = ["model.d_model=16", "model.d_ff=16", "model.num_heads=2", "training.epochs=1"]


def test_the_demo_goes_from_dates_to_a_server(tmp_path, monkeypatch):
    """With too few dates to learn from; `make demo` is the one that learns."""
    sizes = {"train": 600, "validation": 50, "test": 1000}
    monkeypatch.setattr(demo_module, "SIZES", sizes)
    said = []
    exact_match = demo(tmp_path, SMALL, say=said.append)
    assert 0 <= exact_match < 50
    assert [line[:2] for line in said if line[0] != " "] == [f"{step}." for step in range(1, 8)]
    assert (tmp_path / "attention.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "run" / "model.keras").exists()
    assert (tmp_path / "exported" / "1" / "saved_model.pb").exists()
    (alike,) = [int(line.split()[-5]) for line in said if line.endswith("translations alike.")]
    assert alike >= 999  # of 1000: what is nearly as good may come out otherwise
    asked = said[next(place for place, line in enumerate(said) if line[:2] == "7.") + 1 :]
    translated = said[next(place for place, line in enumerate(said) if line[:2] == "4.") + 1 :]
    assert len(asked) == 3
    assert sum(one == other for one, other in zip(asked, translated, strict=False)) >= 2
