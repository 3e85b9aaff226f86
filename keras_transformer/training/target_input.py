"""What the decoder reads while it is trained: the gold target, or partly what it wrote itself."""

from keras import ops

from keras_transformer import masks
from keras_transformer.generation.loop import search
from keras_transformer.text.tokenizer import BEGIN


def gold_probability(batches, decay, k, c, floor):
    """The probability that a place reads the gold token, after so many batches.

    Bengio et al. 2015, "Scheduled Sampling", section 2.4.
    """
    batches = ops.cast(batches, "float32")
    if decay == "linear":
        probability = k - c * batches
    elif decay == "exponential":
        probability = k**batches
    else:  # k / (k + exp(i / k)), in a form that does not overflow
        probability = ops.sigmoid(ops.log(k) - batches / k)
    return ops.clip(probability, floor, 1.0)


def mix_in_passes(predict, gold, use_gold, passes):
    """Reads predictions that all places made at once, from the gold target and then from the mix.

    With one pass the form of Mihaylova and Martins 2019, with more that of Duckworth et al. 2019:
    after as many passes as there are places it is what `mix_in_sequence` gives.

    Args:
        predict: called with target ids [B, T]; returns the most probable next id of each place.
        gold: the target shifted right, [B, T].
        use_gold: bool [B, T], which places read the gold token.
        passes: how often to predict.
    """
    mixed = gold
    for _ in range(passes):
        before = ops.pad(predict(mixed), ((0, 0), (1, 0)))[:, :-1]  # what the place before wrote
        mixed = _mix(gold, before, use_gold)
    return mixed


def mix_in_sequence(model, memory, gold, use_gold):
    """Reads predictions that were made one place after the other (Bengio et al. 2015).

    Args:
        model: a `Transformer`.
        memory: what its `encode` returned.
        gold, use_gold: as of `mix_in_passes`.
    """
    return search(
        lambda ids, state, index: model.step(ids, state, memory, index=index),
        model.start(*ops.shape(gold), memory),
        _Mixing(gold, use_gold),
        BEGIN,
    )


class _Mixing:
    """A search that writes the gold token or the most probable one, as it is told."""

    def __init__(self, gold, use_gold):
        self.gold = gold
        self.use_gold = use_gold
        self.num_rows = ops.shape(gold)[0]

    def start(self):
        return {"mixed": self.gold, "place": ops.convert_to_tensor(1, "int32")}

    def choose(self, progress, index, logits):
        place = index + 1
        predicted = ops.cast(ops.argmax(logits, axis=-1), "int32")[:, None]  # [B, 1]
        here = (masks.positions(ops.shape(self.gold)[1]) == place)[None, :]
        mixed = ops.where(here, _mix(self.gold, predicted, self.use_gold), progress["mixed"])
        last = ops.take(mixed, ops.minimum(place, ops.shape(mixed)[1] - 1), axis=1)
        return last, None, {"mixed": mixed, "place": place + 1}

    def is_done(self, progress):
        return progress["place"] >= ops.shape(self.gold)[1]

    def results(self, progress):
        return progress["mixed"]


def _mix(gold, predicted, use_gold):
    # The first place reads the begin id; what is padding stays so, and nothing else becomes it.
    first = (masks.positions(ops.shape(gold)[1]) == 0)[None, :]
    fixed = first | (gold == masks.PADDING) | (predicted == masks.PADDING)
    return ops.where(use_gold | fixed, gold, predicted)
