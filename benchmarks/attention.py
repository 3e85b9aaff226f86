"""Time, memory and use of every attention mechanism.

    python benchmarks/attention.py cost [--lengths 256 ... 16384] [--only local dot]
    python benchmarks/attention.py recall [--lengths 64 128] [--only local dot]

`cost` runs one head of 64 components over one sequence, forward and backward, and writes the best
time of several and the peak of the memory it took, with the exponents of N in both, fitted from
1,024 on, to benchmarks/attention.md and docs/attention_cost.png.

`recall` trains two encoder layers for associative recall: the places of the first half have a key
and a value, those of the second half the same keys in another order, and each asks for its value,
which can be anywhere in the first half: what is seen of the sequence is scored. Speed, score and
memory go to benchmarks/recall.md and docs/attention_recall.png.
"""

import argparse
import ctypes
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from machine import machine  # beside this file

ROOT = Path(__file__).parent.parent
LENGTHS = [256, 512, 1024, 2048, 4096, 8192, 16384]
# What is measured, at most at what length (memory, or time). N is the length itself.
SPECS = {
    "dot": 16384,
    "general": 16384,
    "cosine": 16384,
    "additive": 2048,
    "mlp": 2048,
    "dot(bias='shaw')": 16384,
    "dot(bias='t5')": 16384,
    "dot(bias='alibi')": 16384,
    "dot(bias='xl')": 16384,
    "local(window=128)": 16384,
    "strided(stride=16, window=128)": 16384,
    "local(window=128, global_tokens=4)": 16384,
    "strided(stride=16, window=64, local=64)": 16384,
    "global_tokens(count=16)": 16384,
    "global_tokens(count=16, added=True)": 16384,
    "block(size=128)": 16384,
    "lsh(window=64, buckets=32, rounds=2)": 16384,
    "kmeans(window=64, clusters=32)": 16384,
    "sinkhorn(size=64)": 16384,
    "linformer(rank=64, max_length=16384)": 16384,
    "compressed(length=64)": 16384,
    "linear": 16384,
    "efficient": 16384,
    "rfa(features=64)": 16384,
    "performer(features=64)": 16384,
    "synthesizer(max_length=N)": 16384,
    "synthesizer(kind='random', max_length=N)": 16384,
    "synthesizer(rank=64, max_length=N)": 16384,
    "synthesizer(mixed=True, max_length=N)": 16384,
    "aft": 16384,
    "aft(kind='local', window=128)": 16384,
    "aft(kind='full', max_length=N)": 16384,
    "fourier": 16384,
    "gmlp(max_length=N)": 16384,
    "monotonic": 2048,  # step by step
    "location": 2048,
}
HEAD_DIM, SECONDS = 64, 1.0
FAMILIES = {
    "scores": ["dot", "general", "cosine", "additive", "mlp"],
    "patterns": ["local", "strided", "global_tokens"],
    "buckets": ["block", "lsh", "kmeans", "sinkhorn"],
    "summaries and sums": ["linformer", "compressed", "linear", "efficient", "rfa", "performer"],
    "learned weights": ["synthesizer", "gmlp"],
    "others": ["aft", "fourier", "monotonic", "location"],
}
# Of the recall task, where a window must be short of the sequence to be one. (`additive` and `mlp`
# would take most of the time.)
RECALLING = [
    "dot", "general", "cosine", "dot(bias='t5')", "local(window=32)",
    "local(window=32, global_tokens=2)", "global_tokens(count=8)",
    "strided(stride=8, window=16, local=16)", "block(size=32)",
    "lsh(window=16, buckets=16, rounds=2)", "kmeans(window=16, clusters=16)", "sinkhorn(size=16)",
    "linformer(rank=32, max_length=256)", "compressed(length=32)", "linear", "efficient",
    "rfa(features=64)", "performer(features=64)", "synthesizer(max_length=256)", "aft", "fourier",
    "gmlp(max_length=256)", "2 * dot + 2 * local(window=16)",
]  # fmt: skip
D_MODEL, HEADS, SYMBOLS, BATCH, STEPS = 64, 4, 32, 16, 200


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["cost", "recall"])
    parser.add_argument("--lengths", nargs="+", type=int)
    parser.add_argument("--only", nargs="+", help="names of mechanisms; nothing is then written")
    parser.add_argument("--steps", type=int, default=STEPS, help="of training for recall")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    lengths = parsed.lengths or (LENGTHS if parsed.what == "cost" else [64, 128])
    if parsed.worker:
        for length in lengths:
            print(json.dumps(work(parsed, length)), flush=True)
        return
    specs = [
        spec
        for spec in (SPECS if parsed.what == "cost" else RECALLING)
        if not parsed.only or spec.partition("(")[0] in parsed.only or spec in parsed.only
    ]
    results = {}
    for spec in specs:
        fits = [length for length in lengths if length <= SPECS.get(spec, max(lengths))]
        if not fits:
            continue
        times, peaks = (run_worker(parsed, spec, fits, memory) for memory in (False, True))
        both = [of_time | of_memory for of_time, of_memory in zip(times, peaks, strict=True)]
        results[spec] = dict(zip(fits, both, strict=True))
        print(spec, results[spec], flush=True)
    if not parsed.only:  # the tables and pictures are of all
        report = report_cost if parsed.what == "cost" else report_recall
        report(results, lengths)


def run_worker(parsed, spec, lengths, memory):
    """What is measured of a mechanism, time or memory, each in a process of its own."""
    command = [sys.executable, __file__, parsed.what, "--worker", spec]
    command += ["--steps", str(parsed.steps), "--lengths", *map(str, lengths)]
    # oneDNN, which TensorFlow turns on by itself on some processors, keeps what is freed.
    settings = {"TF_ENABLE_ONEDNN_OPTS": "0"} if memory else {}
    command += ["--memory"] if memory else []
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | settings
    )
    if done.returncode:
        raise SystemExit(f"{spec}: {done.stderr[-2000:]}")
    return list(map(json.loads, done.stdout.splitlines()))


def work(parsed, length):
    """The time of a mechanism and, of `recall`, its score; or the memory that it takes."""
    if parsed.what == "cost":
        run, score = both_ways(parsed.worker, length), {}
    else:
        run, score = learn_recall(parsed.worker, length, 0 if parsed.memory else parsed.steps)
    return {"mib": peak_memory(run)} if parsed.memory else {"seconds": best_time(run), **score}


def both_ways(spec, length):
    """A function that runs one head forward and backward."""
    import tensorflow as tf

    from keras_transformer.attention import MECHANISMS
    from keras_transformer.attention.spec import parse_heads

    (group,) = parse_heads(spec.replace("=N", f"={length}"), 1)
    mechanism = MECHANISMS[group.name](1, HEAD_DIM, **group.options)
    random = np.random.default_rng(1)
    inputs = [
        tf.constant(random.standard_normal((1, 1, length, HEAD_DIM), dtype="float32"))
        for _ in range(3)
    ]
    mechanism.build(*[(1, 1, length, HEAD_DIM)] * 3)

    @tf.function
    def run(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            weights = mechanism.trainable_variables
            loss = tf.reduce_sum(tf.square(mechanism(*inputs)))
        return tape.gradient(loss, [*inputs, *[weight.value for weight in weights]])

    return lambda: run(*inputs)


def best_time(run):
    """The best of several times, in seconds."""
    from keras_transformer.training.memory import keep_freed_memory

    keep_freed_memory()  # as `train` does
    run()
    times, until = [], time.perf_counter() + SECONDS
    while len(times) < 2 or time.perf_counter() < until:
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


def peak_memory(run):
    """The peak of what a run adds to the process's memory, in MiB."""
    from keras_transformer.training.memory import M_MMAP_THRESHOLD

    # Tensors have pages of their own, which are gone when they are freed: what the first run has
    # freed and the process has kept would not be counted again.
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, 1 << 16)
    run()
    libc.malloc_trim(0)
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    run()
    return (memory("VmHWM") - before) / 1024


def memory(name):
    """A figure of the process's memory, in KiB."""
    (line,) = [
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)
    ]
    return int(line.split()[1])


def learn_recall(spec, length, steps):
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


def family(spec):
    """The family of a spec; of one with several kinds of heads, "mixed"."""
    if "*" in spec:
        return "mixed"
    (found,) = [title for title, names in FAMILIES.items() if spec.partition("(")[0] in names]
    return found


def exponent(by_length, name, least=0.0):
    """Of N in what is measured, fitted from 1,024 on where it is no noise; "" of too few."""
    points = [(n, found[name]) for n, found in by_length.items() if n >= 1024]
    lengths, values = np.array([point for point in points if point[1] >= least]).reshape(-1, 2).T
    return f"{np.polyfit(np.log(lengths), np.log(values), 1)[0]:.2f}" if len(lengths) > 1 else ""


def report_cost(results, lengths):
    from matplotlib.figure import Figure

    lines = [
        "| mechanism | " + " | ".join(f"{n:,}" for n in lengths) + " | time N^ | memory N^ |",
        "|---|" + "--:|" * (len(lengths) + 2),
    ]
    powers = {
        spec: {"seconds": exponent(by_length, "seconds"), "mib": exponent(by_length, "mib", 1)}
        for spec, by_length in results.items()
    }
    for spec, by_length in results.items():
        cells = [
            f"{1000 * by_length[n]['seconds']:.1f} ms, {max(by_length[n]['mib'], 1):,.0f} MiB"
            if n in by_length
            else ""
            for n in lengths
        ]
        lines.append(f"| `{spec}` | " + " | ".join([*cells, *powers[spec].values()]) + " |")
    figure = Figure(figsize=(13, 17), layout="constrained", dpi=100)
    panels = figure.subplots(4, 3).reshape(2, -1)  # [time or memory, family]
    titles = {"seconds": "seconds, forward and backward", "mib": "peak MiB (1: that or less)"}
    for row, (name, title) in zip(panels, titles.items(), strict=True):
        for axes, of_panel in zip(row, FAMILIES, strict=True):
            for spec, by_length in results.items():
                if family(spec) != of_panel and spec != "dot":
                    continue
                # Below a MiB there is only noise.
                numbers = [max(found[name], name == "mib") for found in by_length.values()]
                power = powers[spec][name]
                guest = {} if family(spec) == of_panel else {"color": "0.7", "zorder": 0}
                label = f"N^{power}  {spec}" if power else spec
                axes.loglog(list(by_length), numbers, "o-", markersize=4, label=label, **guest)
            axes.set_title(f"{of_panel}: {title}", fontsize=10)
            axes.set_xticks(lengths, [f"{length:,}" for length in lengths], fontsize=7)
            axes.set_xlabel("N", fontsize=8)
            axes.minorticks_off()
            axes.grid(alpha=0.3)
            axes.legend(fontsize=7, loc="upper left")
        lowest, highest = zip(*(axes.get_ylim() for axes in row), strict=True)
        for axes in row:
            axes.set_ylim(min(lowest), 100 * max(highest))  # room for the names
    figure.savefig(ROOT / "docs" / "attention_cost.png")
    lines += ["", machine("tensorflow", "keras")]
    (ROOT / "benchmarks" / "attention.md").write_text("\n".join(lines) + "\n")
    print(*lines, sep="\n")


def report_recall(results, lengths):
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
    right_end = {}  # of the names so far, in points, by height
    for spec, found in sorted(results.items(), key=lambda item: -item[1]["seconds"]):
        place = 1 / found["seconds"], 100 * found["accuracy"]
        axes.scatter(
            *place, s=8 * found["mib"], color=colors[family(spec)], alpha=0.5, edgecolors="k"
        )
        axes.set(xscale="log", xlim=(5, 60), ylim=(-4, 124), yticks=range(0, 101, 20))
        # A name stands right of the last one at its height, however near their bubbles are.
        own = axes.transData.transform(place)[0] * 72 / axes.figure.dpi
        height = round(place[1] / 20)
        at = right_end[height] = max(own + 4, right_end.get(height, 0.0) + 13)
        axes.annotate(
            re.sub(r"\((?!bias|window=32, )[^)]*\)", "", spec),  # the table has the options
            place, (at - own, 16), textcoords="offset points", fontsize=8, rotation=60,
            rotation_mode="anchor", arrowprops={"arrowstyle": "-", "color": "0.6"},
        )  # fmt: skip
    ticks = [5, 10, 20, 30, 40, 50]
    axes.set_xticks(ticks, list(map(str, ticks)))
    axes.minorticks_off()
    axes.set(xlabel="training steps a second", ylabel="right answers, %")
    axes.grid(alpha=0.3)
    for name in sorted({family(spec) for spec in results}, key=list(colors).index):
        axes.scatter([], [], color=colors[name], alpha=0.5, edgecolors="k", label=name)
    axes.scatter([], [], s=8 * 32, color="none", edgecolors="k", label="32 MiB")
    axes.legend(loc="center right", fontsize=8, labelspacing=1.2)


if __name__ == "__main__":
    main()
