"""Writes docs/attention.md and its pictures from the mechanisms themselves: make docs."""

import inspect
import re
from pathlib import Path

import keras
import numpy as np
from keras import ops

from keras_transformer.attention import MECHANISMS
from keras_transformer.attention.bias import BIASES
from keras_transformer.attention.bucketed import BucketedAttention
from keras_transformer.attention.spec import parse_heads
from keras_transformer.plots import plot_patterns

DOCS = Path(__file__).parent
PAGE = DOCS / "attention.md"
COMMON = {"self", "num_heads", "head_dim", "causal", "dropout", "kwargs"}  # no options of a spec
N, SIZE, HEADS = 24, 16, 8
# What is drawn: small enough that the pattern can be seen at N places.
DRAWN = {
    "dot": ["dot", "dot(bias='alibi')", "dot(bias='t5')", "dot(bias='shaw')", "dot(bias='xl')"],
    "local": ["local(window=6)", "local(window=6, global_tokens=2)"],
    "strided": ["strided(stride=4, window=12)", "strided(stride=4, window=12, local=3)"],
    "global_tokens": ["global_tokens(count=3)", "global_tokens(count=3, added=True)"],
    "block": ["block(size=6)"],
    "lsh": ["lsh(window=8, buckets=4, rounds=1)", "lsh(window=8, buckets=4, rounds=2)"],
    "kmeans": ["kmeans(window=8, clusters=4)"],
    "sinkhorn": ["sinkhorn(size=4)"],
    "linformer": ["linformer(rank=4, max_length=24)"],
    "compressed": ["compressed(length=6, factor=4)"],
    "performer": ["performer(features=64)"],
    "rfa": ["rfa(features=64)"],
    "synthesizer": [
        "synthesizer(max_length=24)", "synthesizer(kind='random', max_length=24)",
        "synthesizer(rank=4, max_length=24)", "synthesizer(mixed=True, max_length=24)",
    ],
    "aft": ["aft(kind='simple')", "aft(kind='local', window=6)", "aft(kind='full', max_length=24)"],
    "gmlp": ["gmlp(max_length=24)"],
}  # fmt: skip
# Mechanisms whose learned weights begin so small that nothing could be seen of them.
SMALL_AT_FIRST = ("dot(bias", "aft", "global_tokens")
# What benchmarks/attention.py writes.
MEASURED = [
    ("Time and memory by length", "attention_cost.png", "attention"),
    ("Associative recall: speed, score and memory", "attention_recall.png", "recall"),
]
OPENING = """\
# Every attention

What each head does is one line of the config, of its own for encoder, decoder and cross-attention:

```toml
[model]
num_heads = 8
encoder_heads = "4 * dot + 2 * local(window=64) + 2 * linear"
decoder_heads = "local(window=64); dot"   # layers in turn
cross_heads = "dot"
```

Where its formula cannot be used, a mechanism is refused with a word on where it may be. All are
held to one contract (`tests/attention/test_contract.py`): padding changes nothing, no future leaks,
decoding step by step equals the whole, the same numbers as a plain loop written from the paper.

This page is made by `make docs` from the mechanisms' own docstrings, and each picture by the
mechanism: a row is a place that looks, a column a place that is looked at, of {n} places of random
vectors, in the first of {heads} heads; the darker, the larger the weight (red where it is
negative). Learned weights that begin near zero are drawn larger, so that it can be seen what they
do.

Where a cell names a form, only that form can be used there.

{measured}| name | encoder | decoder | cross | cost | picture |
|---|---|---|---|---|---|
"""


def main():
    (DOCS / "patterns").mkdir(exist_ok=True)
    for name in MECHANISMS:
        for spec in DRAWN.get(name, [name]):
            draw(spec)
    PAGE.write_text(page(), "utf-8")


def page():
    """The page, which needs no drawing."""
    sections, rows = [], []
    for name, mechanism in MECHANISMS.items():
        specs = DRAWN.get(name, [name])
        pictures = [(spec, picture(spec)) for spec in specs]
        doc = inspect.cleandoc(mechanism.__doc__)
        (cost,) = re.findall(r"Cost: (.*?)(?:[.;:]\s|, in T steps|, of which)", doc, re.DOTALL)
        cost = " ".join(cost.split())
        made = [make(spec) for spec in specs]
        uses = [
            "yes" if able == specs else ", ".join(f"`{spec}`" for spec in able)
            for able in (
                [spec for spec, one in zip(specs, made, strict=True) if getattr(one, use)]
                for use in ("can_encode", "can_be_causal", "can_cross")
            )
        ]
        small = f'<img src="{pictures[0][1]}" width="90">'
        rows.append(f"| [`{name}`](#{name}) | {' | '.join(uses)} | {cost} | {small} |")
        sections.append(f"## {name}\n\n{prose(mechanism)}\n\n" + gallery(pictures))
    measured = "".join(
        f"![{title}]({file}) ([measured](../benchmarks/{table}.md))\n\n"
        for title, file, table in MEASURED
    )
    opening = OPENING.format(n=N, heads=HEADS, measured=measured)
    return opening + "\n".join(rows) + "\n\n" + "\n\n".join(sections) + "\n"


def prose(mechanism):
    """What a docstring says, and the options that a spec may give."""
    body = text(mechanism)
    told = {}
    for each in reversed(mechanism.__mro__):  # an option may be told by a class above
        if issubclass(each, BucketedAttention) and each is not mechanism:
            body += "\n\n" + text(each).partition("\n\n")[2]  # without its first line
        told |= arguments(
            inspect.cleandoc(each.__doc__ or "").replace("DotProductAttention", "dot")
        )
    options = [
        f"- `{name}={parameter.default!r}`: {told[name]}"
        for name, parameter in inspect.signature(mechanism.__init__).parameters.items()
        if name not in COMMON
    ]
    if mechanism is MECHANISMS["dot"]:
        body += "\n\nBeside the score, by the distance of the key from the query:\n\n"
        body += "\n".join(f'- `bias="{name}"`: {one_line(bias)}' for name, bias in BIASES.items())
    return "\n\n".join([body, "\n".join(options)]).strip()


def one_line(bias):
    return " ".join(text(bias).split())


def text(mechanism):
    """What a docstring says before its arguments."""
    return re.split(r"\n(?:Args|Example):", inspect.cleandoc(mechanism.__doc__))[0].strip()


def arguments(doc):
    """What a docstring says of each argument."""
    section = doc.partition("\nArgs:\n")[2]
    section = re.split(r"\n(?:Call arguments|Returns|Example):", section)[0]
    items = re.findall(r"^ {4}([\w, ]+): (.*)$", re.sub(r"\n {8,}", " ", section), re.MULTILINE)
    return {name: text for names, text in items for name in names.split(", ")}


def gallery(pictures):
    heads = " | ".join(f"`{spec}`" for spec, _ in pictures)
    cells = " | ".join(f'<img src="{path}" width="260">' for _, path in pictures)
    return f"| {heads} |\n|{'---|' * len(pictures)}\n| {cells} |"


def make(spec, causal=False):
    (group,) = parse_heads(spec, 1)
    return MECHANISMS[group.name](HEADS, SIZE, causal=causal, **group.options)


def weights(spec, causal):
    """The attention scores [N, N] of random vectors."""
    keras.utils.set_random_seed(7)
    mechanism = make(spec, causal)
    query, key, value = (keras.random.normal((1, HEADS, N, SIZE)) for _ in range(3))
    mechanism.build(query.shape, key.shape, value.shape)
    if spec.startswith(SMALL_AT_FIRST):
        for weight in mechanism.trainable_variables:
            weight.assign(0.6 / np.std(weight) * weight)
    if "key" not in mechanism.projections:
        key = query
    _, scores = mechanism(query, key, value, return_attention_scores=True)
    return ops.convert_to_numpy(scores)[0, 0]


def picture(spec):
    """The path of a spec's picture."""
    return "patterns/" + re.sub(r"[^a-z0-9]+", "_", spec.lower()).strip("_") + ".png"


def draw(spec):
    """The picture of a spec, beside its causal form where it has one."""
    forms = {"whole sequence" if make(spec).can_encode else "of another sequence": False}
    if make(spec).can_be_causal:
        forms["causal"] = True
    maps = {title: weights(spec, causal) for title, causal in forms.items()}
    plot_patterns(DOCS / picture(spec), maps)


if __name__ == "__main__":
    main()
