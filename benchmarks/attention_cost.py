"""The cost of attention: one head over one sequence, forward and backward, by its length."""

from pathlib import Path

import numpy as np
from machine import machine  # beside this file

ROOT = Path(__file__).parent.parent
LENGTHS = [256, 512, 1024, 2048, 4096, 8192, 16384]
# What is measured, and up to what length. N is the length itself. (`lsh` and `kmeans` with as many
# buckets as a window needs to see a bucket whole, and with so many whatever the length.)
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
    "lsh(window=64, buckets=N/64, rounds=2)": 16384,
    "lsh(window=64, buckets=32, rounds=2)": 16384,
    "kmeans(window=64, clusters=N/64)": 16384,
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
    "monotonic": 2048,
    "location": 4096,
}
EMPTY = "Cells are empty where vectors for each pair of places would take more than 12 GiB."
HEAD_DIM = 64
FAMILIES = {
    "scores": ["dot", "general", "cosine", "additive", "mlp"],
    "patterns": ["local", "strided", "global_tokens"],
    "buckets": ["block", "lsh", "kmeans", "sinkhorn"],
    "summaries and sums": ["linformer", "compressed", "linear", "efficient", "rfa", "performer"],
    "learned weights": ["synthesizer", "gmlp"],
    "others": ["aft", "fourier", "monotonic", "location"],
}


def prepare(spec, length, steps):
    """A function that runs one head forward and backward; it has no score, and learns nothing."""
    import tensorflow as tf

    from keras_transformer.attention import MECHANISMS
    from keras_transformer.attention.spec import parse_heads

    spec = spec.replace("=N/64", f"={length // 64}").replace("=N", f"={length}")
    (group,) = parse_heads(spec, 1)
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

    return lambda: run(*inputs), {}


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


def report(results, lengths):
    import matplotlib
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
    colors = list(matplotlib.color_sequences["tab10"])
    del colors[7]  # grey, as `dot` is beside other families
    figure = Figure(figsize=(13, 17), layout="constrained", dpi=100)
    panels = figure.subplots(4, 3).reshape(2, -1)  # [time or memory, family]
    titles = {"seconds": "seconds, forward and backward", "mib": "peak MiB (1: that or less)"}
    for row, (name, title) in zip(panels, titles.items(), strict=True):
        for axes, of_panel in zip(row, FAMILIES, strict=True):
            axes.set_prop_cycle(color=colors)
            for spec, by_length in results.items():
                if family(spec) != of_panel and spec != "dot":
                    continue
                # Below a MiB there is only noise.
                numbers = [max(found[name], name == "mib") for found in by_length.values()]
                power = powers[spec][name]
                guest = {} if family(spec) == of_panel else {"color": "0.5", "zorder": 0}
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
            axes.set_ylim(min(lowest), 1000 * max(highest))  # room for the names
    figure.savefig(ROOT / "docs" / "attention_cost.png")
    if any(len(by_length) < len(lengths) for by_length in results.values()):
        lines += ["", EMPTY]
    lines += ["", machine("tensorflow", "keras")]
    (ROOT / "benchmarks" / "attention.md").write_text("\n".join(lines) + "\n")
    print(*lines, sep="\n")
