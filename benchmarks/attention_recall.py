"""The use of attention: associative recall, learned by two encoder layers."""

import re
from pathlib import Path

import numpy as np
from attention_cost import FAMILIES, family  # beside this file
from machine import machine

ROOT = Path(__file__).parent.parent
LENGTHS = [32, 128]
# What is measured, up to 256 places. A window must be short of the sequence to be one. (`additive`
# and `mlp` would take most of the time; `monotonic` and `location` are for cross-attention.)
SPECS = dict.fromkeys([
    "dot", "general", "cosine", "dot(bias='t5')", "local(window=16)",
    "local(window=16, global_tokens=2)", "global_tokens(count=8)",
    "strided(stride=8, window=16, local=16)", "block(size=16)",
    "lsh(window=16, buckets=16, rounds=2)", "kmeans(window=16, clusters=16)", "sinkhorn(size=16)",
    "linformer(rank=16, max_length=256)", "compressed(length=16)", "linear", "efficient",
    "rfa(features=64)", "performer(features=64)", "synthesizer(max_length=256)", "aft", "fourier",
    "gmlp(max_length=256)", "2 * dot + 2 * local(window=16)",
], 256)  # fmt: skip
D_MODEL, HEADS, SYMBOLS, BATCH = 64, 4, 32, 16


def prepare(spec, length, steps):
    """A function that makes one update more, and the share of right answers after so many."""
    import keras

    from keras_transformer import Encoder, EncoderLayer, SinusoidalPositions, TokenEmbedding

    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    keys, values = (keras.Input((length,), dtype="int32") for _ in range(2))
    x = keras.layers.add(
        [
            TokenEmbedding(size, D_MODEL)(ids)
            for size, ids in ((length // 2, keys), (SYMBOLS + 1, values))
        ]
    )
    x = SinusoidalPositions()(x)
    layers = [EncoderLayer(D_MODEL, 2 * D_MODEL, HEADS, heads=spec, norm="pre") for _ in range(2)]
    x = Encoder(layers)(x)[:, length // 2 :]
    model = keras.Model([keys, values], keras.layers.Dense(SYMBOLS)(x))
    model.compile(
        keras.optimizers.Adam(2e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,  # compiling would take longer than the training
    )

    def batches(seed):
        random, half = np.random.default_rng(seed), length // 2
        while True:
            keys, order = (np.argsort(random.random((BATCH, half)), axis=1) for _ in range(2))
            values = random.integers(1, SYMBOLS + 1, (BATCH, half))
            asked, answers = (np.take_along_axis(x, order, axis=1) for x in (keys, values))
            inputs = [np.concatenate(x, axis=1) for x in ((keys, asked), (values, 0 * values))]
            yield tuple(x.astype("int32") for x in inputs), answers - 1

    training, score = batches(1), {}
    if steps:
        model.fit(training, steps_per_epoch=steps, verbose=0)
        score["accuracy"] = model.evaluate(batches(2), steps=16, verbose=0)[1]
    batch = next(training)
    return lambda: model.train_on_batch(*batch), score


def report(results, lengths):
    from matplotlib.figure import Figure

    lines = ["| mechanism | N | right | steps/s | MiB |", "|---|--:|--:|--:|--:|"]
    lines += [
        f"| `{spec}` | {length} | {found['accuracy']:.1%} | {1 / found['seconds']:.1f} | "
        f"{max(found['mib'], 1):,.0f} |"
        for spec, by_length in results.items()
        for length, found in by_length.items()
    ]
    figure = Figure(figsize=(11, 7 * len(lengths)), layout="constrained", dpi=100)
    for axes, length in zip(
        figure.subplots(len(lengths), squeeze=False)[:, 0], lengths, strict=True
    ):
        draw_bubbles(axes, {spec: by_length[length] for spec, by_length in results.items()})
        axes.set_title(f"associative recall, N = {length}; the bubble's area is the peak memory")
    figure.savefig(ROOT / "docs" / "attention_recall.png")
    lines += ["", f"Chance is {1 / SYMBOLS:.1%}. " + machine("tensorflow", "keras")]
    (ROOT / "benchmarks" / "recall.md").write_text("\n".join(lines) + "\n")
    print(*lines, sep="\n")


def draw_bubbles(axes, results):
    """Speed across, score up, memory as the size of the bubble."""
    colors = {name: f"C{number}" for number, name in enumerate([*FAMILIES, "mixed"])}
    speeds = [1 / found["seconds"] for found in results.values()]
    bounds = min(speeds) / 1.2, 1.6 * max(speeds)  # room for the names
    axes.set(xscale="log", xlim=bounds, ylim=(-4, 136), yticks=range(0, 101, 20))
    right_end = {}  # of the names so far, in points, by height
    for spec, found in sorted(results.items(), key=lambda item: -item[1]["seconds"]):
        place = 1 / found["seconds"], 100 * found["accuracy"]
        axes.scatter(
            *place, s=8 * found["mib"], color=colors[family(spec)], alpha=0.5, edgecolors="k"
        )
        # A name stands right of the last one at its height, however near their bubbles are.
        own = axes.transData.transform(place)[0] * 72 / axes.figure.dpi
        height = round(place[1] / 20)
        at = right_end[height] = max(own + 4, right_end.get(height, 0.0) + 13)
        axes.annotate(
            re.sub(r"\((?!bias|window=16, global)[^)]*\)", "", spec),  # the table has the options
            place, (at - own, 16), textcoords="offset points", fontsize=8, rotation=60,
            rotation_mode="anchor", arrowprops={"arrowstyle": "-", "color": "0.6"},
        )  # fmt: skip
    ticks = [tick for tick in (2, 5, 10, 20, 30, 50, 100, 150, 200) if bounds[0] < tick < bounds[1]]
    axes.set_xticks(ticks, list(map(str, ticks)))
    axes.minorticks_off()
    axes.set(xlabel="training steps a second", ylabel="right answers, %")
    axes.grid(alpha=0.3)
    for name in sorted({family(spec) for spec in results}, key=list(colors).index):
        axes.scatter([], [], color=colors[name], alpha=0.5, edgecolors="k", label=name)
    axes.scatter([], [], s=8 * 32, color="none", edgecolors="k", label="32 MiB")
    axes.legend(loc="center right", fontsize=8, labelspacing=1.2)
