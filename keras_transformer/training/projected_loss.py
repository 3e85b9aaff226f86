"""Cross-entropy of decoder outputs and the table they are projected with, without whole logits."""

from keras import ops

CHUNKS = 8  # of the places of a batch; a chunk's logits are small enough to stay near the processor


def projected_cross_entropy(x, table, labels, weight, label_smoothing=0.0, agreement=0.0):
    """What `smoothed_cross_entropy` of the logits x W' gives, with a fraction of their memory.

    The logits [P, V] of all P places are by far the largest tensor of a training step, and a step
    that keeps them goes over them again and again. Here a chunk of places is projected, its softmax
    is multiplied into both gradients, and its logits are gone. The rest of the gradient,
    softmax z - (1-e) onehot(y) - e/V, has no need of a tensor as wide as the vocabulary.

    Args:
        x: decoder outputs [N, P, D], of one pass over the places, or of two with other dropout.
        table: W [V, D], the output projection.
        labels: ids [P].
        weight: float32 [P], what each place counts; 0 for padding.
        label_smoothing: the share e.
        agreement: of two passes with the distributions p and q, how much of
            KL(p || q) + KL(q || p) is added to the loss.

    Returns:
        Three float32 sums over the places, each times its weight, as means of the passes: the loss,
        the cross-entropy without smoothing, and the places whose label has the largest logit. Only
        the first has a gradient.
    """
    labels, rest, passes = ops.cast(labels, "int32"), 1 - label_smoothing, x.shape[0]

    @ops.custom_gradient
    def sums_of(x, table):
        projection = ops.transpose(table)  # [D, V]
        by_chunk, table_gradient = [], 0.0
        for rows, row_labels, row_weight in zip(
            _split(x, axis=1), _split(labels), _split(weight), strict=True
        ):
            flat = ops.reshape(rows, (-1, x.shape[-1]))
            logits = ops.cast(ops.matmul(flat, projection), "float32")
            logits = ops.reshape(logits, (passes, -1, table.shape[0]))  # [N, P / CHUNKS, V]
            largest = ops.max(logits, axis=-1, keepdims=True)
            exponentials = ops.exp(logits - largest)
            total = ops.sum(exponentials, axis=-1, keepdims=True)
            if agreement:
                by_logits, apart = _agree(logits, exponentials / total, agreement)
                scale = row_weight[:, None]
            else:
                # The softmax is the exponentials times this; D columns are scaled faster than V.
                by_logits, scale = exponentials, row_weight[:, None] / (passes * total)
                apart = ops.zeros_like(row_weight)
            scale = ops.cast(scale, x.dtype)
            by_logits = ops.reshape(ops.cast(by_logits, x.dtype), (-1, table.shape[0]))
            scaled = ops.reshape(scale * rows, (-1, x.shape[-1]))
            table_gradient += ops.matmul(ops.transpose(scaled), by_logits)  # [D, V]
            row_gradient = scale * ops.reshape(ops.matmul(by_logits, table), ops.shape(rows))
            places = ops.broadcast_to(row_labels[None, :, None], ops.shape(total))
            logit = ops.take_along_axis(logits, places, axis=-1)
            of_places = (ops.log(total) + largest, largest, logit)  # [N, P / CHUNKS, 1]
            by_chunk.append((row_gradient, *of_places, apart[None, :, None]))
        x_gradient, log_total, largest, logit, apart = (
            ops.concatenate(parts, axis=1)[:, : ops.shape(x)[1]]
            for parts in zip(*by_chunk, strict=True)
        )
        own, mean = ops.take(table, labels, axis=0), ops.mean(table, axis=0)  # [P, D], [D]
        mean_logit = ops.cast(ops.matmul(x, mean[:, None]), "float32")  # [N, P, 1]
        sums = [
            log_total - rest * logit - label_smoothing * mean_logit + agreement * apart,
            log_total - logit,
            ops.cast(logit >= largest, "float32"),
        ]
        # In float32, because a frequent label has very many terms.
        weighted = weight[:, None] * ops.mean(ops.cast(x, "float32"), axis=0)  # [P, D]
        share = ops.cast(weight[:, None] / passes, x.dtype)
        x_gradient -= share * (rest * own + label_smoothing * mean)
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

        means = [ops.mean(each[..., 0], axis=0) for each in sums]  # [P] each
        return ops.stack([ops.sum(weight * each) for each in means]), gradient

    return ops.unstack(sums_of(x, table), 3)


def _agree(logits, softmax, agreement):
    """Two passes' mean cross-entropy and `agreement` times their divergence, by the logits.

    With d = log p - log q the divergence is sum (p - q) d, and its gradient by the logits of p is
    p (d - sum p d) + p - q. In both, what is the same for all tokens cancels in d: the difference
    of the logits will do.

    Args:
        logits, softmax: [2, P, V].
        agreement: its weight.

    Returns:
        The gradient [2, P, V] without the part of the labels, and the divergence [P].
    """
    (p, q), apart = ops.unstack(softmax, 2), logits[0] - logits[1]
    of_p, of_q = (ops.sum(each * apart, axis=-1, keepdims=True) for each in (p, q))
    apart, own = agreement * apart, 0.5 + agreement
    by_p = p * (apart + (own - agreement * of_p)) - agreement * q
    by_q = q * ((own + agreement * of_q) - apart) - agreement * p
    return ops.stack([by_p, by_q]), (of_p - of_q)[:, 0]


def projected_best(x, table):
    """The ids [P] of the largest logits of decoder outputs x [P, D]."""
    projection = ops.transpose(table)
    best = [ops.argmax(ops.matmul(rows, projection), axis=-1) for rows in _split(x)]
    return ops.cast(ops.concatenate(best)[: ops.shape(x)[0]], "int32")


def _split(x, axis=0):
    """Cut along an axis in CHUNKS parts of the same size, the last of them filled up with zeros."""
    size = -(-ops.shape(x)[axis] // CHUNKS)
    padding = [[0, 0]] * len(x.shape)
    padding[axis] = [0, CHUNKS * size - ops.shape(x)[axis]]
    return ops.split(ops.pad(x, padding), CHUNKS, axis=axis)
