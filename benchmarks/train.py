"""Training speed: `fit` beside PyTorch's nn.Transformer and KerasHub's layers, on the same batches.

    python3 -m venv benchmarks/.venv
    benchmarks/.venv/bin/pip install torch==2.13.0 numpy
    pip install keras-hub
    python benchmarks/train.py [--sizes tiny small] [--rounds 3] [--output benchmarks/train.md]

A batch has 448 pairs of 18 tokens a side, of a vocabulary of 10,000, all embeddings shared, dropout
0.3 on embeddings and sublayers (KerasHub's layers also drop attention weights, by the same rate),
label smoothing 0.1 (KerasHub: none, Keras has none for integer labels), Adam (PyTorch's fused one).
Ours is what `keras-transformer train` runs with `parallel_parts = 2`; also in one part, compiled by
XLA, and with Muon. Keras's engines keep freed memory, as `train` does; PyTorch's have glibc's
defaults. The engines take turns, and the best round of each counts. The share of the peak is that
of the floating-point operations that the matrix products of a step need, of what the machine does
in a large matrix product.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from machine import machine  # beside this file

PAIRS, LENGTH, VOCABULARY, DROPOUT = 448, 18, 10_000, 0.3
SIZES = {  # layers a side, d_model, d_ff, heads
    "tiny": (4, 128, 256, 4),
    "small": (3, 256, 1024, 8),
}
TORCH = Path(__file__).parent / ".venv" / "bin" / "python"
OURS = "keras_transformer"
ENGINES = {
    OURS: sys.executable,
    f"{OURS}, in one part": sys.executable,
    f"{OURS}, XLA": sys.executable,
    f"{OURS}, Muon": sys.executable,
    "PyTorch": TORCH,
    "torch.compile": TORCH,
    "KerasHub": sys.executable,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5, help="of each measurement")
    parser.add_argument("--output", help="write the table to this file as well")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.worker:
        work(*parsed.worker)
        return
    check_engines()
    lines = [
        "| size | engine | ms a step | target tokens/s | ours is | share of the peak |",
        "|---|---|--:|--:|--:|--:|",
    ]
    print(*lines, sep="\n", flush=True)
    peak = measure_peak()
    for size in parsed.sizes:
        for line in compare(size, parsed.rounds, parsed.steps, peak):
            print(line, flush=True)
            lines.append(line)
    if parsed.output:
        # PyTorch is in an environment of its own, at the version above.
        lines += ["", machine("tensorflow", "keras", "keras-hub") + " torch 2.13.0."]
        Path(parsed.output).write_text("\n".join(lines) + "\n")


def check_engines():
    """Refuses to begin without the others, and tells how to get them."""
    for python, package in ((TORCH, "torch"), (sys.executable, "keras_hub")):
        look = f"import importlib.util as util, sys; sys.exit(not util.find_spec({package!r}))"
        if not Path(python).exists() or subprocess.call([python, "-c", look]):
            install = "\n".join(__doc__.split("\n")[2:5])
            sys.exit(f"{package} is not there. Install what is measured beside us:\n{install}")


def compare(size, rounds, steps, peak):
    """The lines of the table for one size."""
    workers = {
        engine: subprocess.Popen(
            [python, __file__, "--worker", engine, size],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )
        for engine, python in ENGINES.items()
    }  # fmt: skip
    best = dict.fromkeys(workers, float("inf"))
    for number in range(rounds + 1):
        for engine, worker in workers.items():
            print(1 if number == 0 else steps, file=worker.stdin, flush=True)  # the first warms up
            seconds = json.loads(worker.stdout.readline())
            if number:
                best[engine] = min(best[engine], seconds)
    for worker in workers.values():
        worker.stdin.close()
        worker.wait()
    for engine, seconds in best.items():
        speed, ratio = PAIRS * LENGTH / seconds, seconds / best[OURS]
        share = operations(size) / seconds / peak
        yield (
            f"| {size} | {engine} | {1000 * seconds:.0f} | {speed:,.0f} | {ratio:.2f} x | "
            f"{100 * share:.0f} % |"
        )


def operations(size):
    """Floating-point operations of the matrix products of a step, forward and backward."""
    layers, d_model, d_ff, _ = SIZES[size]
    attention, feed_forward = 4 * d_model**2, 2 * d_model * d_ff
    products = layers * (3 * attention + 2 * feed_forward) + d_model * VOCABULARY
    scores = layers * 3 * 2 * LENGTH * d_model
    return 6 * PAIRS * LENGTH * (products + scores)


def measure_peak():
    """Operations a second of a large matrix product on all cores, by NumPy or TensorFlow.

    The better of the two: on some processors OpenBLAS is half as fast as oneDNN.
    """
    import numpy as np
    import tensorflow as tf

    size = 2048
    a = np.random.default_rng(1).standard_normal((size, size), dtype="float32")
    best = float("inf")
    for matrix in (a, tf.constant(a)):
        for _ in range(6):
            began = time.perf_counter()
            np.asarray(matrix @ matrix)
            best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best


def work(engine, size):
    """Measures as many steps as each line asks for."""
    package, _, form = engine.partition(", ")
    if package == OURS:
        run = keras_steps(SIZES[size], form)
    elif package == "KerasHub":
        run = keras_hub_steps(SIZES[size])
    else:
        run = torch_steps(SIZES[size], compiled=package == "torch.compile")
    for line in sys.stdin:
        steps = int(line)
        began = time.perf_counter()
        run(steps)
        print(json.dumps((time.perf_counter() - began) / steps), flush=True)


def make_batch():
    import numpy as np

    random = np.random.default_rng(1)
    return [random.integers(4, VOCABULARY, (PAIRS, LENGTH)).astype("int32") for _ in range(3)]


def keras_steps(size, form):
    from keras_transformer.config import ModelConfig, RunConfig, TrainingConfig
    from keras_transformer.training.cores import share_cores
    from keras_transformer.training.memory import keep_freed_memory
    from keras_transformer.training.preparation import compile_objective

    parts = 1 if form in ("in one part", "XLA") else 2
    keep_freed_memory()  # as `train` does
    share_cores(parts)
    layers, d_model, d_ff, num_heads = size
    config = ModelConfig(
        VOCABULARY, d_model=d_model, d_ff=d_ff, num_heads=num_heads, dropout=DROPOUT,
        encoder_layers=layers, decoder_layers=layers,
    )  # fmt: skip
    source, target, labels = make_batch()
    data = {"source": source, "target": target, "labels": labels}
    training = TrainingConfig(
        jit_compile=form == "XLA", optimizer="muon" if form == "Muon" else "adam",
        parallel_parts=parts,
    )  # fmt: skip
    return fit_steps(compile_objective(RunConfig(config, training=training)), data)


def keras_hub_steps(size):
    import keras
    import keras_hub

    from keras_transformer.training.memory import keep_freed_memory

    keep_freed_memory()
    layers, d_model, d_ff, num_heads = size
    embedding = keras_hub.layers.TokenAndPositionEmbedding(VOCABULARY, LENGTH, d_model)
    source, target = (keras.Input((None,), dtype="int32") for _ in range(2))
    memory, x = (keras.layers.Dropout(DROPOUT)(embedding(ids)) for ids in (source, target))
    for _ in range(layers):
        memory = keras_hub.layers.TransformerEncoder(d_ff, num_heads, DROPOUT)(memory)
    for _ in range(layers):
        x = keras_hub.layers.TransformerDecoder(d_ff, num_heads, DROPOUT)(x, memory)
    model = keras.Model([source, target], embedding.token_embedding(x, reverse=True))
    model.compile(
        keras.optimizers.Adam(1e-3, beta_2=0.98),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0),
        jit_compile=False,
    )
    source, target, labels = make_batch()
    return fit_steps(model, ((source, target), labels))


def fit_steps(model, batch):
    """As many steps of `fit` as asked for. One call that goes on for ever could not be measured."""
    import tensorflow as tf

    from keras_transformer.data.batches import OPTIONS

    batches = tf.data.Dataset.from_tensors(batch).repeat().with_options(OPTIONS)
    return lambda steps: model.fit(batches, steps_per_epoch=steps, verbose=0)


def torch_steps(size, compiled):
    import math

    import torch
    from torch import nn

    torch.manual_seed(1)
    layers, d_model, d_ff, num_heads = size

    class Translator(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(VOCABULARY, d_model, padding_idx=0)
            self.dropout = nn.Dropout(DROPOUT)
            self.transformer = nn.Transformer(
                d_model, num_heads, layers, layers, d_ff, DROPOUT, batch_first=True
            )
            for layer in [*self.transformer.encoder.layers, *self.transformer.decoder.layers]:
                layer.dropout.p = 0.0  # inside the feed-forward network
                layer.self_attn.dropout = 0.0
            for layer in self.transformer.decoder.layers:
                layer.multihead_attn.dropout = 0.0
            place = torch.arange(LENGTH)[:, None] / 10000 ** (torch.arange(0, d_model, 2) / d_model)
            table = torch.stack([place.sin(), place.cos()], dim=-1).flatten(1)
            self.register_buffer("positions", table)
            self.register_buffer("causal", torch.ones(LENGTH, LENGTH).triu(1).bool())

        def embed(self, ids):
            return self.dropout(self.embedding(ids) * math.sqrt(d_model) + self.positions)

        def forward(self, source, target):
            padding = source == 0
            decoded = self.transformer(
                self.embed(source), self.embed(target), tgt_mask=self.causal,
                src_key_padding_mask=padding, tgt_key_padding_mask=target == 0,
                memory_key_padding_mask=padding, tgt_is_causal=True,
            )  # fmt: skip
            return decoded @ self.embedding.weight.T

    model = Translator()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, betas=(0.9, 0.98), fused=True)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=0)
    source, target, labels = (torch.from_numpy(part).long() for part in make_batch())

    def loss(source, target, labels):
        return loss_of(model(source, target).flatten(0, 1), labels.flatten())

    if compiled:
        loss = torch.compile(loss)

    def run(steps):
        for _ in range(steps):
            optimizer.zero_grad()
            loss(source, target, labels).backward()
            optimizer.step()

    return run


if __name__ == "__main__":
    main()
