"""Each mechanism once more, as loops over places from its paper's formula.

Weights are taken from the mechanisms; nothing else of the package is used here.
"""

import math

import numpy as np

from keras_transformer.attention.spec import parse_heads
from tests.oracle import array, softmax

# The contract's rows: every mechanism, in small, and what can be combined in it.
SPECS = [
    "dot",
    "dot(scale=1.0)",
    "dot(bias='shaw')",
    "dot(bias='t5')",
    "dot(bias='alibi')",
    "dot(bias='xl')",
    "general",
    "cosine",
    "additive",
    "mlp",
    "local(window=4)",
    "local(window=4, global_tokens=2)",
    "local(window=4, score='additive', bias='t5')",
    "local(window=4, global_tokens=1, bias='xl')",
    "local(window=5, score='cosine', bias='alibi')",
    "strided(stride=3, window=2)",
    "strided(stride=3, window=4, local=3, global_tokens=1, bias='shaw')",
    "global_tokens(count=2)",
    "global_tokens(count=3, added=True)",
    "block(size=3)",
    "block(size=3, score='general', bias='t5')",
    "lsh(window=4, buckets=4, rounds=1)",
    "lsh(window=3, buckets=2, rounds=3)",
    "kmeans(window=4, clusters=3)",
    "sinkhorn(size=3)",
    "linformer(rank=4, max_length=16)",
    "compressed(length=4, factor=3)",
    "compressed(length=2, factor=2)",
    "linear",
    "efficient",
    "rfa(features=8)",
    "performer(features=8)",
    "synthesizer(max_length=16)",
    "synthesizer(kind='random', max_length=16)",
    "synthesizer(rank=4, max_length=16)",
    "synthesizer(kind='random', rank=3, max_length=16)",
    "synthesizer(mixed=True, max_length=8)",
    "synthesizer(kind='random', mixed=True, max_length=16)",
    "aft",
    "aft(kind='local', window=4)",
    "aft(kind='full', max_length=16)",
    "fourier",
    "gmlp(max_length=16)",
    "monotonic",
    "monotonic(score='dot')",
    "location(filters=2, width=3)",
]


def chooses_keys(spec):
    """Whether a small change may make a place look at other places."""
    return any(name in spec for name in ("lsh", "kmeans", "sinkhorn"))


def weighs_values(spec):
    """Whether the output is a sum of values, each times a number for a whole head."""
    return not spec.startswith(("aft", "fourier", "gmlp"))


def loop(spec, mechanism, query, key, value, causal):
    """The output [H, T, K] for one sentence without padding."""
    (group,) = parse_heads(spec, 1)
    if group.name == "fourier":  # the heads together
        return fourier(value)
    function = FORMULAS[group.name]
    return np.stack(
        [
            function(query[h], key[h], value[h], causal, mechanism, h, **group.options)
            for h in range(len(query))
        ]
    )


def weigh(query, key, value, sees, score):
    """Softmax attention of one head: query [T, K], key and value [S, K]."""
    output = np.zeros((len(query), value.shape[1]))
    for t in range(len(query)):
        seen = [s for s in range(len(key)) if sees(t, s)]
        if not seen:
            continue
        weights = softmax([score(t, s) for s in seen])
        for s, weight in zip(seen, weights, strict=True):
            output[t] += weight * value[s]
    return output


def scores(query, key, causal, mechanism, head, score="dot", scale=None, bias=None):
    def of_places(t, s):
        found = SCORES[score](mechanism.score, head, query[t], key[s], scale)
        if bias is not None:
            found += BIASES[bias](mechanism.bias, head, query[t], key[s], s - t, causal)
        return found

    return of_places


def dense(name):
    def function(query, key, value, causal, mechanism, head, **options):
        score = scores(query, key, causal, mechanism, head, name, **options)
        return weigh(query, key, value, lambda t, s: s <= t or not causal, score)

    return function


def within(distance, window, causal):
    if causal:
        return -window < distance <= 0
    return abs(distance) <= window // 2


def pattern(near):
    """`near(distance, causal, **options)`, beside the global tokens."""

    def function(query, key, value, causal, mechanism, head, global_tokens=0, **options):
        part = {name: options.pop(name) for name in ("score", "bias") if name in options}
        score = scores(query, key, causal, mechanism, head, **part)

        def sees(t, s):
            if causal and s > t:
                return False
            return near(s - t, causal, **options) or min(t, s) < global_tokens

        return weigh(query, key, value, sees, score)

    return function


def strided(distance, causal, stride, window, local=0):
    if local and within(distance, local, causal):
        return True
    return distance % stride == 0 and within(distance // stride, window, causal)


def global_tokens(query, key, value, causal, mechanism, head, count, added=False):
    if not added:
        function = pattern(lambda distance, causal: False)
        return function(query, key, value, causal, mechanism, head, count)

    def attend(query, key, value):
        score = scores(query, key, False, mechanism, head)
        return weigh(query, key, value, lambda t, s: True, score)

    collected = attend(array(mechanism.token_query)[head], key, value)
    return attend(query, array(mechanism.token_key)[head], collected)


def dot(part, head, q, k, scale):
    return q @ k * (1 / math.sqrt(len(q)) if scale is None else scale)


def general(part, head, q, k, scale):
    return q @ array(part.matrix)[head] @ k / math.sqrt(len(q))


def cosine(part, head, q, k, scale):
    return array(part.strength)[head] * (q @ k) / np.linalg.norm(q) / np.linalg.norm(k)


def additive(part, head, q, k, scale):
    hidden = np.tanh(q @ array(part.query_matrix)[head] + k @ array(part.key_matrix)[head])
    return float(hidden @ array(part.vector)[head, :, 0])


def mlp(part, head, q, k, scale):
    hidden = q @ array(part.query_matrix)[head] + k @ array(part.key_matrix)[head]
    hidden = np.tanh(hidden + array(part.first_bias)[head])
    hidden = np.tanh(hidden @ array(part.matrix)[head] + array(part.second_bias)[head])
    return float(hidden @ array(part.vector)[head, :, 0])


def shaw(part, head, q, k, distance, causal):
    return q @ array(part.table)[16 + max(-16, min(16, distance))] / math.sqrt(len(q))


def t5(part, head, q, k, distance, causal):
    buckets = 32 if causal else 16  # a side
    exact, far = buckets // 2, abs(distance)
    bucket = far
    if far >= exact:
        bucket = exact + int(math.log(far / exact) / math.log(128 / exact) * (buckets - exact))
        bucket = min(bucket, buckets - 1)
    return array(part.table)[bucket + (buckets if distance > 0 and not causal else 0), head]


def alibi(part, head, q, k, distance, causal):
    return -(2.0 ** (-8 * (head + 1) / part.num_heads)) * abs(distance)


def xl(part, head, q, k, distance, causal):
    """u'k + q'W r + v'W r; q'k is the dot product's."""
    size = part.num_heads * len(q)
    angle = [distance / 10000 ** (2 * i / size) for i in range(size // 2)]
    r = np.concatenate([np.sin(angle), np.cos(angle)]) @ array(part.matrix)
    r = r.reshape(part.num_heads, -1)[head]
    u, v = array(part.u)[head, 0], array(part.v)[head, 0]
    return (u @ k + (q + v) @ r) / math.sqrt(len(q))


def block(query, key, value, causal, mechanism, head, size, **options):
    score = scores(query, key, causal, mechanism, head, **options)
    return weigh(
        query, key, value, lambda t, s: t // size == s // size and (s <= t or not causal), score
    )


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def bucketed(query, value, causal, window, buckets):
    """Attention within buckets [N, rounds] of queries that are keys as well."""
    key = unit(query)
    rounds = buckets.shape[1]

    def seen_in(t, s, number):
        """Whether s is among the nearest places of t's bucket."""
        if buckets[t, number] != buckets[s, number] or (causal and s > t):
            return False
        members = [n for n in range(len(key)) if buckets[n, number] == buckets[t, number]]
        return within(members.index(s) - members.index(t), window, causal)

    def times(t, s):
        shared = sum(buckets[t, number] == buckets[s, number] for number in range(rounds))
        return sum(seen_in(t, s, number) for number in range(rounds)) / max(shared, 1)

    def score(t, s):
        found = query[t] @ key[s] / math.sqrt(query.shape[1]) + math.log(times(t, s))
        return found - 1e4 if s == t else found

    return weigh(query, key, value, lambda t, s: times(t, s) > 0, score)


def lsh(query, key, value, causal, mechanism, head, window, buckets, rounds):
    turned = unit(query) @ array(mechanism.rotations)[head]
    turned = turned.reshape(len(query), rounds, buckets // 2)
    numbers = np.concatenate([turned, -turned], axis=-1).argmax(-1)
    return bucketed(query, value, causal, window, numbers)


def kmeans(query, key, value, causal, mechanism, head, window, clusters):
    near = unit(query) @ array(mechanism.centroids)[head].T
    return bucketed(query, value, causal, window, near.argmax(-1)[:, None])


def sinkhorn(query, key, value, causal, mechanism, head, size):
    n = -(-len(query) // size)
    cut = [slice(size * i, size * (i + 1)) for i in range(n)]
    queries, keys = ([unit(x[part].mean(0)) for part in cut] for x in (query, key))
    matrix = array(mechanism.matrix)[head] * math.sqrt(query.shape[1])
    permutation = np.array([[q @ matrix @ k for k in keys] for q in queries])
    permutation = np.exp(permutation / 0.75)
    for _ in range(20):
        permutation /= permutation.sum(1, keepdims=True)
        permutation /= permutation.sum(0, keepdims=True)
    output = []
    for i in range(n):
        j = permutation[i].argmax()
        weights = np.exp(query[cut[i]] @ key.T / math.sqrt(query.shape[1]))  # [size, N]
        counts = np.zeros(len(key))  # how often a key is seen
        counts[cut[i]] += 1
        counts[cut[j]] += permutation[i, j]
        weights = weights * counts
        output.append(weights / weights.sum(1, keepdims=True) @ value)
    return np.concatenate(output)


def linformer(query, key, value, causal, mechanism, head, rank, max_length):
    of_key, of_value = (
        array(each)[:, : len(key)] for each in (mechanism.key_map, mechanism.value_map)
    )
    key, value = of_key @ key, of_value @ value
    return weigh(
        query, key, value, lambda t, s: True, lambda t, s: dot(None, head, query[t], key[s], None)
    )


def compressed(query, key, value, causal, mechanism, head, length, factor):
    def shorten(x, taps):
        if causal:
            x = np.concatenate([np.zeros((factor - 1, x.shape[1])), x])
            firsts = range(0, len(x) - factor + 1, factor)
            return np.stack([taps @ x[first : first + factor] for first in firsts])
        most = length * factor
        if len(x) > most:
            stretch = [s * most // len(x) for s in range(len(x))]
            x = np.stack([x[[s for s in range(len(x)) if stretch[s] == c]].mean(0)
                          for c in range(most)])  # fmt: skip
        rows = [x[first : first + factor] for first in range(0, len(x), factor)]
        return np.stack([taps[: len(row)] @ row for row in rows])

    key = shorten(key, array(mechanism.key_filter)[:, head])
    value = shorten(value, array(mechanism.value_filter)[:, head])

    def sees(t, s):
        return not causal or t // factor - length < s <= t // factor

    return weigh(query, key, value, sees, lambda t, s: dot(None, head, query[t], key[s], None))


def kernel(weight):
    """sum_s w(q_t, k_s) v_s / sum_s w(q_t, k_s)."""

    def function(query, key, value, causal, mechanism, head, **options):
        output = np.zeros((len(query), value.shape[1]))
        for t in range(len(query)):
            seen = range(t + 1) if causal else range(len(key))
            weights = [weight(mechanism, head, query[t], key[s]) for s in seen]
            output[t] = sum(w * value[s] for w, s in zip(weights, seen, strict=True)) / sum(weights)
        return output

    return function


def elu(mechanism, head, q, k):
    q, k = (np.where(x > 0, x + 1, np.exp(x)) for x in (q, k))
    return q @ k


def rfa(mechanism, head, q, k):
    w = array(mechanism.feature_map.projection)[head]
    apart = array(mechanism.feature_map.sigma)[head] * (unit(q) - unit(k))
    return np.cos(apart @ w).sum()  # cos a cos b + sin a sin b


def performer(mechanism, head, q, k):
    w = array(mechanism.feature_map.projection)[head]
    q, k = q / len(q) ** 0.25, k / len(k) ** 0.25
    return np.exp((q + k) @ w - (q @ q + k @ k) / 2).sum()


def efficient(query, key, value, causal, mechanism, head):
    output = np.zeros((len(query), value.shape[1]))
    for t in range(len(query)):
        seen = range(t + 1) if causal else range(len(key))
        for component, share in enumerate(softmax(list(query[t]))):
            weights = softmax([key[s, component] for s in seen])
            output[t] += share * sum(w * value[s] for w, s in zip(weights, seen, strict=True))
    return output


def synthesizer(
    query, key, value, causal, mechanism, head, kind="dense", rank=None, mixed=False, max_length=256
):
    def synthetic(t, s):
        t_row, s = min(t, max_length - 1), min(s, max_length - 1)
        if kind == "random":
            if rank is None:
                return array(mechanism.table)[head, t_row, s]
            of_rows, of_keys = (array(factor)[head] for factor in mechanism.factors)
            return of_rows[t_row] @ of_keys[s]
        hidden = query[t] @ array(mechanism.inner)[head] + array(mechanism.inner_bias)[head, 0]
        rows = [
            np.maximum(hidden, 0) @ array(outer)[head] + array(bias)[head, 0]
            for outer, bias in zip(mechanism.outer, mechanism.outer_bias, strict=True)
        ]
        return rows[0][s] if rank is None else rows[0][s % rank] * rows[1][s // rank]

    def score(t, s):
        if not mixed:
            return synthetic(t, s)
        share = 1 / (1 + math.exp(-array(mechanism.mix)[head]))
        return share * synthetic(t, s) + (1 - share) * dot(None, head, query[t], key[s], None)

    return weigh(query, key, value, lambda t, s: s <= t or not causal, score)


def aft(query, key, value, causal, mechanism, head, kind="simple", window=64, max_length=256):
    def w(t, s):
        if kind == "full":
            u, v = array(mechanism.of_queries)[head, t], array(mechanism.of_keys)[head, s]
            return u @ v / math.sqrt(len(u))
        if kind == "local" and within(s - t, window, causal):
            return array(mechanism.table)[head, s - t + mechanism.before]
        return 0.0

    output = np.zeros_like(query, "float64")
    for t in range(len(query)):
        seen = range(t + 1) if causal else range(len(key))
        weights = [np.exp(key[s].astype("float64") + w(t, s)) for s in seen]
        output[t] = sum(e * value[s] for e, s in zip(weights, seen, strict=True)) / sum(weights)
    return output / (1 + np.exp(-query))


def fourier(value):
    """The heads of one sentence, [H, N, K]."""
    x = np.concatenate(list(value), axis=1)  # [N, D]
    y = np.fft.fft2(x).real / math.sqrt(x.size)
    return np.stack(np.split(y, len(value), axis=1))


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def gmlp(query, key, value, causal, mechanism, head, max_length):
    v = gelu(value)
    mean, variance = v.mean(-1, keepdims=True), v.var(-1, keepdims=True)
    v = (v - mean) / np.sqrt(variance + 1e-5)
    v = v * array(mechanism.layer_norm.gamma) + array(mechanism.layer_norm.beta)
    matrix, offset = array(mechanism.matrix)[head], array(mechanism.offset)[head]
    output = np.zeros_like(v)
    for t in range(len(v)):
        seen = range(t + 1) if causal else range(len(v))
        output[t] = sum(matrix[t, s] * v[s] for s in seen) + offset[t]
    return gelu(query) * output


def monotonic(query, key, value, causal, mechanism, head, score="additive"):
    of_places = scores(query, key, False, mechanism, head, score)
    last = np.eye(len(key))[0]
    output = []
    for t in range(len(query)):
        p = [1 / (1 + math.exp(-of_places(t, s) - array(mechanism.offset)[head, 0, 0]))
             for s in range(len(key))]  # fmt: skip
        weights, going_on = np.zeros(len(key)), 0.0
        for s in range(len(key)):
            arrived = going_on + last[s]
            weights[s], going_on = p[s] * arrived, (1 - p[s]) * arrived
        output.append(weights @ value)
        last = weights
    return np.stack(output)


def location(query, key, value, causal, mechanism, head, filters, width):
    last = np.eye(len(key))[0]
    convolution = array(mechanism.convolution)[:, 0]  # [width, filters]
    output = []
    for t in range(len(query)):
        row = np.pad(last, width // 2)
        found = []
        for s in range(len(key)):
            f = row[s : s + width] @ convolution @ array(mechanism.matrix)[head]
            part = mechanism.score
            hidden = (
                query[t] @ array(part.query_matrix)[head] + key[s] @ array(part.key_matrix)[head]
            )
            found.append(float(np.tanh(hidden + f) @ array(part.vector)[head, :, 0]))
        last = np.array(softmax(found))
        output.append(last @ value)
    return np.stack(output)


SCORES = {"dot": dot, "general": general, "cosine": cosine, "additive": additive, "mlp": mlp}
BIASES = {"shaw": shaw, "t5": t5, "alibi": alibi, "xl": xl}
FORMULAS = {
    **{name: dense(name) for name in SCORES},
    "local": pattern(lambda distance, causal, window: within(distance, window, causal)),
    "strided": pattern(strided),
    "global_tokens": global_tokens,
    "block": block,
    "lsh": lsh,
    "kmeans": kmeans,
    "sinkhorn": sinkhorn,
    "linformer": linformer,
    "compressed": compressed,
    "linear": kernel(elu),
    "rfa": kernel(rfa),
    "performer": kernel(performer),
    "efficient": efficient,
    "synthesizer": synthesizer,
    "aft": aft,
    "gmlp": gmlp,
    "monotonic": monotonic,
    "location": location,
}
