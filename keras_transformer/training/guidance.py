"""Losses that tell the cross-attention where to look."""

from keras import ops

from keras_transformer import masks


def diagonal_loss(alignment, source, target, width):
    """What attention costs that is far from the diagonal, the mean over the target's tokens.

    sum_s A[t, s] (1 - exp(-(t/T - s/S)^2 / 2 g^2)) (Tachibana et al. 2018, "Efficiently Trainable
    Text-to-Speech System Based on Deep Convolutional Networks with Guided Attention", section 4.1),
    with T and S the lengths of each pair. (The paper divides by S as well.)

    Args:
        alignment: A [B, T, S], attention weights.
        source: ids [B, S].
        target: ids [B, T].
        width: g.
    """
    across, down = _relative_positions(source)[:, None, :], _relative_positions(target)[:, :, None]
    cost = 1 - ops.exp(-ops.square(down - across) / (2 * width**2))  # [B, T, S]
    cost = ops.sum(ops.cast(alignment, "float32") * cost, axis=-1)
    return _mean(cost, masks.keep_tokens(target))


def alignment_loss(alignment, given, target):
    """Cross-entropy of attention against given alignments, the mean over the target's tokens.

    Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer Models", 4.2. (The
    paper tells one head where to look; here it is the mean of a layer's.) A token without a link
    costs nothing.

    Args:
        alignment: [B, T, S], attention weights.
        given: bool [B, T, S], True where a target token is aligned to a source token.
        target: ids [B, T].
    """
    given = ops.cast(given, "float32")
    links = ops.sum(given, axis=-1)  # [B, T]
    logs = ops.log(ops.maximum(ops.cast(alignment, "float32"), 1e-9))
    loss = -ops.sum(given * logs, axis=-1) / ops.maximum(links, 1.0)
    return _mean(loss, masks.keep_tokens(target))


def _relative_positions(ids):
    keep = ops.cast(masks.keep_tokens(ids), "float32")
    lengths = ops.maximum(ops.sum(keep, axis=-1, keepdims=True), 1.0)
    return ops.cast(masks.positions(ops.shape(ids)[1])[None, :], "float32") / lengths


def _mean(values, where):
    where = ops.cast(where, "float32")
    return ops.sum(values * where) / ops.maximum(ops.sum(where), 1.0)
