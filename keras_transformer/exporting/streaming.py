"""The pair of functions with which a server streams: a token at a time, greedily."""

import tensorflow as tf
from keras import tree

from keras_transformer.generation import loop
from keras_transformer.generation.choose import Greedy
from keras_transformer.generation.generate import constraints, room
from keras_transformer.text.tokenizer import BEGIN, END


def make_streaming(signatures) -> tuple:
    """The functions `start` and `step` of a model.

    `start` takes `text` [B] and returns all that `step` takes. `step` writes one more token of each
    row and returns what has changed, to be given to the next `step` under the same names, as well
    as the `token` [B] that it wrote and the `text` [B] so far. A row whose `finished` [B] is True
    is complete.
    """
    model, decoding = signatures.model, signatures.decoding

    def strategy(limits, length):
        return Greedy(limits, length, END, constraints(decoding, signatures.suppressed))

    structure = {}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")], autograph=False)
    def start(text):
        source, truncated = signatures.read(text)
        rows = tf.size(text)
        memory = tree.map_structure(lambda x: x[:rows], signatures.encode(source))
        limits, length = room(model, source, decoding)
        limits = limits[:rows]
        index, last, state, progress = loop.start(
            model.start(rows, length, memory), strategy(limits, length), BEGIN
        )
        structure["fixed"] = {"memory": memory}
        structure["fixed"]["limits"] = limits
        if signatures.unknown.slots:
            structure["fixed"]["words"] = signatures.find_words(text)
        structure["carry"] = {"index": index, "last": last, "state": state, **progress}
        return {
            **_flatten(structure["fixed"]),
            **_flatten(structure["carry"]),
            "truncated": truncated[:rows],
        }

    outputs = start.get_concrete_function().structured_outputs

    def step(**given):
        fixed = _unflatten(structure["fixed"], given)
        carry = _unflatten(structure["carry"], given)

        def write():
            progress = {name: carry[name] for name in ("record", "finished")}
            length = tf.shape(progress["record"]["ids"])[1]
            index, last, state, progress = loop.advance(
                lambda ids, state, index: model.step(ids, state, fixed["memory"], index=index),
                strategy(fixed["limits"], length),
                (carry["index"], carry["last"], carry["state"], progress),
            )
            return {"index": index, "last": last, "state": state, **progress}

        with signatures.weights.read(model):
            # There is nothing to write either where there are no rows.
            carry = tf.cond(tf.reduce_all(carry["finished"]), lambda: carry, write)
        words = fixed.get("words", tf.fill([tf.size(carry["last"]), 0], ""))
        said = {
            "token": signatures.spell(carry["last"][:, None], words)[:, 0],
            "text": signatures.write_text(carry["record"]["ids"], words),
        }
        return _flatten(carry) | said

    specs = {
        name: tf.TensorSpec(tensor.shape, tensor.dtype, name)
        for name, tensor in outputs.items()
        if name != "truncated"
    }
    return start, tf.function(step, autograph=False).get_concrete_function(**specs)


def _flatten(structure):
    """A tree as a flat dict, whose names are the paths: `state_0_self_attention_0_key`."""
    return {"_".join(map(str, path)): leaf for path, leaf in tree.flatten_with_path(structure)}


def _unflatten(structure, flat):
    """The tree of that structure, out of a flat dict that may hold more."""
    return tree.pack_sequence_as(structure, [flat[name] for name in _flatten(structure)])
