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
    "dot(bias='shaw')": 8192,
    "dot(bias='t5')": 8192,
    "dot(bias='alibi')": 8192,
    "dot(bias='xl')": 8192,
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
    "synthesizer(max_length=N)": 8192,
    "synthesizer(kind='random', max_length=N)": 8192,
    "synthesizer(rank=64, max_length=N)": 8192,
    "synthesizer(mixed=True, max_length=N)": 8192,
    "aft": 16384,
    "aft(kind='local', window=128)": 16384,
    "aft(kind='full', max_length=N)": 8192,
    "fourier": 16384,
    "gmlp(max_length=N)": 8192,
    "monotonic": 2048,  # step by step
    "location": 2048,
}
HEAD_DIM, SECONDS = 64, 1.0
# Of the recall task, where a window must be short of the sequence to be one.
RECALLING = [
    "dot", "general", "cosine", "additive", "mlp", "dot(bias='t5')", "local(window=32)",
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
    parsed = parser.parse_args()
    lengths = parsed.lengths or (LENGTHS if parsed.what == "cost" else [64, 128])
    if parsed.worker:
        work = measure_cost if parsed.what == "cost" else measure_recall
        for length in lengths:
            print(json.dumps(work(parsed.worker, length, parsed.steps)), flush=True)
        return
    specs = [
        spec
        for spec in (SPECS if parsed.what == "cost" else RECALLING)
        if not parsed.only or spec.partition("(")[0] in parsed.only or spec in parsed.only
    ]
    results = {}
    for spec in specs:
        fits = [length for length in lengths if length <= SPECS.get(spec, max(lengths))]
        results[spec] = dict(zip(fits, run_worker(parsed, spec, fits), strict=True))
        print(spec, results[spec], flush=True)
    if not parsed.only:  # the tables and pictures are of all
        report = report_cost if parsed.what == "cost" else report_recall
        report(results, lengths)


def run_worker(parsed, spec, lengths):
    """The measurements of a mechanism, in a process of its own."""
    command = [sys.executable, __file__, parsed.what, "--worker", spec]
    command += ["--steps", str(parsed.steps), "--lengths", *map(str, lengths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{spec}: {done.stderr[-2000:]}")
    return list(map(json.loads, done.stdout.splitlines()))


def measure_cost(spec, length, steps):
    """Seconds and MiB of a forward and a backward pass."""
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
    def both_ways(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            weights = mechanism.trainable_variables
            loss = tf.reduce_sum(tf.square(mechanism(*inputs)))
        return tape.gradient(loss, [*inputs, *[weight.value for weight in weights]])

    return time_and_memory(lambda: both_ways(*inputs))


def time_and_memory(run):
    """The best of several times, and the peak of what a run adds to the process's memory."""
    from keras_transformer.training.memory import M_MMAP_THRESHOLD, keep_freed_memory

    # Tensors have pages of their own, which are gone when they are freed: what the first run has
    # freed and the process has kept would not be counted again.
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, 1 << 16)
    run()
    libc.malloc_trim(0)
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    run()
    peak = memory("VmHWM") - before
    keep_freed_memory()  # as `train` does
    run()
    times, until = [], time.perf_counter() + SECONDS
    while len(times) < 3 or time.perf_counter() < until:
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return {"seconds": min(times), "mib": peak / 1024}


def memory(name):
    """A figure of the process's memory, in KiB."""
    (line,) = [
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)
    ]
    return int(line.split()[1])


def measure_recall(spec, length, steps):
    """The share of right answers after training, speed and memory."""
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

    training = batches(1)
    first = next(training)
    cost = time_and_memory(lambda: model.train_on_batch(*first))
    model.fit(training, steps_per_epoch=steps, verbose=0)
    accuracy = model.evaluate(batches(2), steps=16, verbose=0)[1]
    return cost | {"accuracy": accuracy}


def styles(specs):
    """A colour for each family, and for each of its members a marker."""
    from matplotlib import colormaps

    from keras_transformer.attention import MECHANISMS
    from keras_transformer.attention.spec import parse_heads

    modules, members, found = {}, {}, {}
    for spec in specs:
        names = {
            MECHANISMS[group.name].__module__
            for group in parse_heads(spec.replace("=N", "=16"), count_heads(spec))
        }
        family = "mixed" if len(names) > 1 else names.pop()
        color = colormaps["tab20"](2 * modules.setdefault(family, len(modules)) % 19)
        members[family] = members.get(family, -1) + 1
        found[spec] = {
            "color": color,
            "marker": "os^DvP*Xhp<>"[members[family]],
            "linestyle": "-",
        }
    return found


def count_heads(spec):
    """As many as a spec names, or one."""
    return sum(int(term.split("*")[0]) if "*" in term else 1 for term in spec.split(" + "))


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
    figure = Figure(figsize=(15, 12), layout="constrained", dpi=100)
    axes = figure.subplots(1, 2)
    style_of = styles(results)
    for spec, by_length in results.items():
        powers = exponent(by_length, "seconds"), exponent(by_length, "mib", least=1)
        cells = [
            f"{1000 * by_length[n]['seconds']:.1f} ms, {max(by_length[n]['mib'], 1):,.0f} MiB"
            if n in by_length
            else ""
            for n in lengths
        ]
        lines.append(f"| `{spec}` | " + " | ".join([*cells, *powers]) + " |")
        for axis, name, power in zip(axes, ("seconds", "mib"), powers, strict=True):
            # Below a MiB there is only noise.
            numbers = [max(by_length[n][name], 1 if name == "mib" else 0) for n in by_length]
            label = f"N^{power}  {spec}" if power else spec
            axis.loglog(list(by_length), numbers, label=label, markersize=5, **style_of[spec])
    titles = ("seconds, forward and backward", "peak memory, MiB (1: that or less)")
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title)
        axis.set_xlabel("N")
        axis.set_xticks(lengths, [f"{length:,}" for length in lengths], fontsize=8)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend(loc="upper left", bbox_to_anchor=(0, -0.07), fontsize=7.5, ncols=2)
    figure.savefig(ROOT / "docs" / "attention_cost.png")
    lines += ["", machine("tensorflow", "keras")]
    (ROOT / "benchmarks" / "attention.md").write_text("\n".join(lines) + "\n")
    print(*lines, sep="\n")


def report_recall(results, lengths):
    from matplotlib.figure import Figure

    lines = ["| mechanism | N | right | steps/s | MiB |", "|---|--:|--:|--:|--:|"]
    figure = Figure(figsize=(8 * len(lengths), 8), layout="constrained", dpi=110)
    all_axes = figure.subplots(1, len(lengths), squeeze=False)[0]
    style_of = styles(results)
    for spec, by_length in results.items():
        for axes, length in zip(all_axes, lengths, strict=True):
            if length not in by_length:
                continue
            found = by_length[length]
            speed, right, mib = 1 / found["seconds"], found["accuracy"], max(found["mib"], 1)
            lines.append(f"| `{spec}` | {length} | {right:.1%} | {speed:.1f} | {mib:,.0f} |")
            color = style_of[spec]["color"]
            axes.scatter(speed, 100 * right, s=8 * mib, color=color, alpha=0.6, edgecolors="k")
            axes.annotate(spec, (speed, 100 * right), fontsize=7, ha="center", va="center")
    for axes, length in zip(all_axes, lengths, strict=True):
        axes.set_title(f"associative recall, N = {length}; the bubble's area is the peak memory")
        axes.set_xlabel("training steps a second")
        axes.set_ylabel("right answers, %")
        axes.set_xscale("log")
        axes.grid(alpha=0.3)
    figure.savefig(ROOT / "docs" / "attention_recall.png")
    lines += ["", machine("tensorflow", "keras")]
    (ROOT / "benchmarks" / "recall.md").write_text("\n".join(lines) + "\n")
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
