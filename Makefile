# make demo, make test, make lint: each makes .venv with the pinned requirements when it is not there.

PYTHON ?= python3
VENV = .venv
BIN = $(VENV)/bin
INSTALLED = $(VENV)/.installed
JAX_VERSION = 0.10.2

.PHONY: demo test test-notebooks test-jax strip-notebooks lint format docs pictures protos wheel clean

demo: $(INSTALLED)
	$(BIN)/keras-transformer demo

test: $(INSTALLED)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --durations 30

# Every notebook from top to bottom, one after the other, because each uses all cores.
test-notebooks: $(INSTALLED)
	$(BIN)/python -m pytest -q -m notebooks --durations 0 tests/notebooks

# Takes out of the notebooks what running and saving them has put in.
strip-notebooks: $(INSTALLED)
	$(BIN)/python tests/notebooks/strip.py colab/*.ipynb

# What is made of keras.ops alone, on another backend of Keras. Not part of `make test`.
PORTABLE = tests/attention tests/layers tests/models tests/generation \
	tests/training/test_loss_metrics_schedule.py
# Compiling is most of the time, so little is optimised.
test-jax: $(VENV)/.installed-jax
	KERAS_BACKEND=jax XLA_FLAGS=--xla_backend_optimization_level=0 $(BIN)/python -m pytest -q $(PORTABLE)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# docs/attention.md and its pictures, drawn by the mechanisms themselves, and docs/configuration.md,
# written from the dataclasses; to be committed.
docs: $(INSTALLED)
	$(BIN)/python docs/draw_attention.py
	$(BIN)/python docs/write_configuration.py

# docs/pictures.md, with pictures that the notebooks draw; to be committed.
pictures: $(INSTALLED)
	$(BIN)/python docs/draw_notebooks.py

# What protoc makes of the client's protos; to be committed with them.
CLIENT = serving/client/keras_transformer_client
protos: $(INSTALLED)
	$(BIN)/python -m grpc_tools.protoc -I serving/client \
		--descriptor_set_out $(CLIENT)/protos.bin $(CLIENT)/*.proto

wheel: $(INSTALLED)
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

clean:
	rm -rf $(VENV) build dist *.egg-info

# The stamp is written last, so that a broken installation is done again.
$(INSTALLED): requirements.txt pyproject.toml
	$(PYTHON) -c 'import sys; assert (3, 11) <= sys.version_info < (3, 14), "Python 3.11 to 3.13 is needed; name one with make PYTHON=python3.12"'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

$(VENV)/.installed-jax: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check jax==$(JAX_VERSION)
	touch $@
