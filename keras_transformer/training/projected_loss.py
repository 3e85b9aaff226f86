"""Cross-entropy of decoder outputs and the table they are projected with, without whole logits."""

from keras import ops

CHUNKS = 8  # of the places of a batch; a chunk's logits are small enough to stay near the processor


def projected_cross_entropy(x, table, labels, weight, label_smoothing=0.0):
    """What `smoothed_cross_entropy` of the logits x W' gives, with a fraction of their memory.

    The logits [P, V] of all P places are by far the largest tensor of a training step, and a step
    that keeps them goes over them again and again. Here a chunk of places is projected, its softmax
    is multiplied into both gradients, and its logits are gone. The rest of the gradient,
    softmax z - (1-e) onehot(y) - e/V, has no need of a tensor as wide as the vocabulary.

    Args:
        x: decoder outputs [P, D].
        table: W [V, D], the output projection.
        labels: ids [P].
        weight: float32 [P], what each place counts; 0 for padding.
        label_smoothing: the share e.

    Returns:
        Three float32 sums over the places, each times its weight: the loss, the cross-entropy
        without smoothing, and the places whose label has the largest logit. Only the first has a
        gradient.
    """
    labels, rest = ops.cast(labels, "int32"), 1 - label_smoothing

    @ops.custom_gradient
    def sums_of(x, table):
        projection = ops.transpose(table)  # [D, V]
        by_chunk, table_gradient = [], 0.0
        for rows, row_labels, row_weight in zip(*map(_split, (x, labels, weight)), strict=True):
            logits = ops.cast(ops.matmul(rows, projection), "float32")  # [P / CHUNKS, V]
            largest = ops.max(logits, axis=-1)
            exponentials = ops.exp(logits - largest[:, None])
            total = ops.sum(exponentials, axis=-1)
            softmax = ops.cast(exponentials * (row_weight / total)[:, None], x.dtype)
            table_gradient += ops.matmul(ops.transpose(rows), softmax)  # [D, V]
            logit = ops.take_along_axis(logits, row_labels[:, None], axis=-1)[:, 0]
            by_chunk.append((ops.matmul(softmax, table), ops.log(total) + largest, largest, logit))
        x_gradient, log_total, largest, logit = (
            ops.concatenate(parts)[: ops.shape(x)[0]] for parts in zip(*by_chunk, strict=True)
        )
        own, mean = ops.take(table, labels, axis=0), ops.mean(table, axis=0)  # [P, D], [D]
        mean_logit = ops.cast(ops.matmul(x, mean[:, None])[:, 0], "float32")
        sums = [
            log_total - rest * logit - label_smoothing * mean_logit,
            log_total - logit,
            ops.cast(logit >= largest, "float32"),
        ]
        # In float32, because a frequent label has very many terms.
        weighted = weight[:, None] * ops.cast(x, "float32")  # [P, D]
        x_gradient -= ops.cast(weight[:, None], x.dtype) * (rest * own + label_smoothing * mean)
        table_gradient = ops.cast(
            ops.cast(ops.transpose(table_gradient), "float32")
            - rest * ops.segment_sum(weighted, labels, num_segments=table.shape[0])
            - (label_smoothing / table.shape[0]) * ops.sum(weighted, axis=0),
            table.dtype,
        )

        def gradient(*arguments, upstream=None):
            upstream = arguments[0] if upstream is None else upstream  # [3]
            scale = ops.cast(upstream[0], x.dtype)
            return scale * x_gradient, scale * table_gradient

        return ops.stack([ops.sum(weight * each) for each in sums]), gradient

    return ops.unstack(sums_of(x, table), 3)


def projected_divergence(x, other, table, weight):
    """How far the distributions of two decoder outputs are apart, KL(p || q) + KL(q || p).

    With d = log p - log q, its gradient by the logits of p is p (d - sum p d) + p - q, and likewise
    by those of q: a chunk is done with as in `projected_cross_entropy`.

    Args:
        x, other: [P, D] each.
        table: W [V, D], the output projection.
        weight: float32 [P], what each place counts.

    Returns:
        The float32 sum over the places, each times its weight.
    """

    @ops.custom_gradient
    def sum_of(x, other, table):
        projection = ops.transpose(table)  # [D, V]
        total, by_chunk, table_gradient = 0.0, [], 0.0
        for *both, row_weight in zip(_split(x), _split(other), _split(weight), strict=True):
            logs = [
                ops.log_softmax(ops.cast(ops.matmul(rows, projection), "float32"), axis=-1)
                for rows in both
            ]
            p, q = map(ops.exp, logs)  # [P / CHUNKS, V]
            apart = logs[0] - logs[1]
            total += ops.sum(row_weight * ops.sum((p - q) * apart, axis=-1))
            gradients = []
            for rows, (one, two, d) in zip(both, ((p, q, apart), (q, p, -apart)), strict=True):
                by_logits = one * (d - ops.sum(one * d, axis=-1, keepdims=True) + 1) - two
                by_logits = ops.cast(row_weight[:, None] * by_logits, x.dtype)
                table_gradient += ops.matmul(ops.transpose(rows), by_logits)  # [D, V]
                gradients.append(ops.matmul(by_logits, table))
            by_chunk.append(gradients)
        x_gradient, other_gradient = (
            ops.concatenate(parts)[: ops.shape(x)[0]] for parts in zip(*by_chunk, strict=True)
        )

        def gradient(*arguments, upstream=None):
            upstream = arguments[0] if upstream is None else upstream
            scale = ops.cast(upstream, x.dtype)
            return tuple(
                scale * each for each in (x_gradient, other_gradient, ops.transpose(table_gradient))
            )

        return total, gradient

    return sum_of(x, other, table)


def projected_best(x, table):
    """The ids [P] of the largest logits of decoder outputs x [P, D]."""
    projection = ops.transpose(table)
    best = [ops.argmax(ops.matmul(rows, projection), axis=-1) for rows in _split(x)]
    return ops.cast(ops.concatenate(best)[: ops.shape(x)[0]], "int32")


def _split(x):
    """[P, ...] in CHUNKS parts of the same size, the last of them filled up with zeros."""
    size = -(-ops.shape(x)[0] // CHUNKS)
    padding = [[0, CHUNKS * size - ops.shape(x)[0]]] + [[0, 0]] * (len(x.shape) - 1)
    return ops.split(ops.pad(x, padding), CHUNKS)
