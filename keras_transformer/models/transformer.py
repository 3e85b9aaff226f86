"""The encoder-decoder Transformer as a functional Keras model."""

import dataclasses

import keras
from keras import ops

from keras_transformer import masks
from keras_transformer.attention.spec import parse_layers
from keras_transformer.config import ModelConfig
from keras_transformer.layers.decoder import Decoder, DecoderLayer
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.layers.encoder import Encoder, EncoderLayer
from keras_transformer.layers.linear import Linear
from keras_transformer.layers.pointer import Pointer
from keras_transformer.layers.positions import LearnedPositions, SinusoidalPositions
from keras_transformer.layers.wiring import CrossWiring
from keras_transformer.text.tokenizer import UNKNOWN


@keras.saving.register_keras_serializable("keras_transformer")
class Transformer(keras.Model):
    """The Transformer of "Attention Is All You Need" (Vaswani et al. 2017).

    A functional model: `summary`, `fit`, `save` and `layers` are Keras's own. `encode`, `start` and
    `step` run the same layers one place at a time, for decoding.

    Args:
        config: a `ModelConfig`.
        dtype: a Keras dtype policy such as "mixed_bfloat16" for all layers; by default the global.

    Call arguments:
        inputs: a dict with `source` ids [B, S] and `target` ids [B, T], the target shifted right.
            Id 0 is padding.

    Returns:
        Logits [B, T, V] of the token that follows each target place; with `copy_words` C,
        log P [B, T, V + C].

    Example:

    >>> import keras
    >>> from keras_transformer import ModelConfig, Transformer
    >>> model = Transformer(ModelConfig.preset("tiny", vocabulary_size=100))
    >>> source, target = keras.ops.array([[5, 6, 7, 2]]), keras.ops.array([[1, 8, 9]])
    >>> tuple(model({"source": source, "target": target}).shape)
    (1, 3, 100)

    One place at a time:

    >>> memory = model.encode(source)
    >>> state = model.start(1, 3, memory)
    >>> logits, state = model.step(keras.ops.array([1]), state, memory, index=0)
    >>> tuple(logits.shape)
    (1, 100)
    """

    def __init__(self, config: ModelConfig, dtype=None, name="transformer", **kwargs):
        # By its name, because Keras records a layer's config only from plain values.
        policy = keras.dtype_policies.get(dtype or keras.config.dtype_policy()).name
        self.config = config
        self._make_embeddings(policy)
        self._make_stacks(policy)
        self._check_mechanisms()
        source = keras.Input((None,), dtype="int32", name="source")
        target = keras.Input((None,), dtype="int32", name="target")
        decoded = self.decode(source, target, return_cross_scores=config.copy_words > 0)
        super().__init__(
            inputs={"source": source, "target": target},
            outputs=self.predict_tokens(*decoded, source),
            name=name,
            **kwargs,
        )
        self.layer_policy = policy  # of the layers; the model itself computes nothing

    def _make_embeddings(self, policy):
        config = self.config

        def embedding(vocabulary_size, name):
            return TokenEmbedding(vocabulary_size, config.d_model, dtype=policy, name=name)

        def positions(name):
            if config.positions == "learned":
                return LearnedPositions(config.max_length, dtype=policy, name=name)
            if config.positions == "sinusoidal":
                return SinusoidalPositions(dtype=policy, name=name)
            return None  # rotary positions turn queries and keys, inside the attention

        if config.target_vocabulary_size is None:
            shared = embedding(config.vocabulary_size, "embedding")
            self.source_embedding = self.target_embedding = shared
        else:
            self.source_embedding = embedding(config.vocabulary_size, "source_embedding")
            self.target_embedding = embedding(config.target_vocabulary_size, "target_embedding")
        self.source_positions = positions("source_positions")
        self.target_positions = positions("target_positions")
        self.source_dropout = keras.layers.Dropout(
            config.dropout, dtype=policy, name="source_dropout"
        )
        self.target_dropout = keras.layers.Dropout(
            config.dropout, dtype=policy, name="target_dropout"
        )
        self.output_projection = None
        if not config.tie_output:
            self.output_projection = Linear(
                config.target_vocabulary_size or config.vocabulary_size,
                use_bias=False,
                dtype=policy,
                name="output_projection",
            )
        self.pointer = None
        if config.copy_words:
            self.pointer = Pointer(config.copy_words, dtype=policy, name="pointer")

    def _make_stacks(self, policy):
        config = self.config
        options = dict(
            d_model=config.d_model,
            d_ff=config.d_ff,
            num_heads=config.num_heads,
            rotary=config.positions == "rotary",
            activation=config.activation,
            gated=config.gated,
            norm=config.norm,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            feed_forward_dropout=config.feed_forward_dropout,
            dtype=policy,
        )
        self.encoder = Encoder(
            [
                EncoderLayer(heads=heads, name=f"layer_{height}", **options)
                for height, heads in enumerate(
                    parse_layers(config.encoder_heads, config.encoder_layers)
                )
            ],
            dtype=policy,
            name="encoder",
        )
        self.wiring = CrossWiring(
            config.decoder_layers, config.cross_attention, dtype=policy, name="wiring"
        )
        heads = parse_layers(config.decoder_heads, config.decoder_layers)
        cross_heads = parse_layers(config.cross_heads, config.decoder_layers)
        self.decoder = Decoder(
            [
                DecoderLayer(
                    heads=heads[height],
                    cross_heads=cross_heads[height],
                    name=f"layer_{height}",
                    **options,
                )
                for height in range(config.decoder_layers)
            ],
            dtype=policy,
            name="decoder",
        )

    def _check_mechanisms(self):
        """Refuses heads that cannot do what the model needs of them."""
        config = self.config
        layers = [*self.encoder.layers, *self.decoder.layers]
        attentions = [layer.self_attention.layer for layer in layers]
        attentions += [layer.cross_attention.layer for layer in self.decoder.layers]
        for mechanism in (each for attention in attentions for each in attention.mechanisms):
            if mechanism.longest is not None and mechanism.longest < config.max_length:
                raise ValueError(
                    f"A head can look at {mechanism.longest} places, but the model has max_length="
                    f"{config.max_length}. Lower it, or give the mechanism a larger one, if "
                    "it has that option."
                )
        if config.copy_words:
            self.check_alignment("copy_words")

    def check_alignment(self, who: str):
        """Refuses cross-attention whose weights are no probabilities, for who needs such."""
        for layer in self.decoder.layers:
            for mechanism in layer.cross_attention.layer.mechanisms:
                if not mechanism.weights_are_probabilities:
                    raise ValueError(
                        f"{who} needs attention weights that are probabilities; cross_heads="
                        f"{self.config.cross_heads!r} has others."
                    )

    def encode(self, source):
        """What the decoder needs to know of source ids [B, S]: computed once, then looked at."""
        outputs, keep = self._encode(source)
        memory = {"layers": self.decoder.remember(self.wiring(outputs), keep)}
        return memory if self.pointer is None else memory | {"source": source}

    def start(self, batch_size, length, memory):
        """The decoder's state before the first of at most `length` places.

        Args:
            batch_size: the rows; with N hypotheses a sentence, B N.
            length: how many places `step` may be called for.
            memory: what `encode` returned.
        """
        return self.decoder.start(batch_size, length, memory["layers"])

    def step(self, target, state, memory, index, return_alignment=False):
        """Takes in the target ids at position `index`.

        Args:
            target: ids [B N]; with N > 1, the N hypotheses of a sentence one after the other.
            state: what `start` or the last `step` returned, for B N rows.
            memory: what `encode` returned, for the B sentences.
            index: int or int tensor, the position of the ids; 0 for the first.
            return_alignment: whether to return what the hypotheses looked at as well.

        Returns:
            The output [B N, V] for the next token, and the new state; where asked, also the
            `alignment` [B, N, S].
        """
        x = self._embed_target(target[:, None], offset=index)  # [B N, 1, D]
        x, state, scores = self.decoder.step(x, state, memory["layers"], index)
        if self.pointer is None:
            logits = self._logits(ops.squeeze(x, axis=1))
        else:  # the hypotheses of a sentence as so many places
            x = ops.reshape(x, (ops.shape(memory["source"])[0], -1, x.shape[-1]))  # [B, N, D]
            logits = self.predict_tokens(x, scores, memory["source"])
            logits = ops.reshape(logits, (-1, logits.shape[-1]))
        if not return_alignment:
            return logits, state
        return logits, state, self.alignment(scores)

    def alignment(self, cross_scores):
        """Which source token each target token goes with, [B, T, S].

        Of the cross-attention scores [B, H, T, S] of each layer it is the mean of the heads of the
        last layer but one, which agrees best with people's alignments (Garg et al. 2019).
        """
        return ops.mean(cross_scores[max(len(cross_scores) - 2, 0)], axis=1)

    def attention_scores(self, source, target):
        """The attention weights of every layer and head for one batch.

        Args:
            source: ids [B, S].
            target: ids [B, T], the target shifted right.

        Returns:
            A dict with `encoder` [B, H, S, S], `decoder` [B, H, T, T] and `cross` [B, H, T, S],
            each a list with one tensor a layer.
        """
        (outputs, encoder_scores), keep = self._encode(source, return_attention_scores=True)
        _, decoder_scores, cross_scores = self._decode(
            outputs, keep, target, return_attention_scores=True
        )
        return {"encoder": encoder_scores, "decoder": decoder_scores, "cross": cross_scores}

    def decode(self, source, target, return_cross_scores=False):
        """The decoder's outputs, before the projection.

        Args:
            source: ids [B, S].
            target: ids [B, T], the target shifted right.
            return_cross_scores: whether the second result is wanted.

        Returns:
            [B, T, D], and the cross-attention scores [B, H, T, S] of each layer, or None.
        """
        outputs, keep = self._encode(source)
        if not return_cross_scores:
            return self._decode(outputs, keep, target), None
        x, _, scores = self._decode(outputs, keep, target, return_attention_scores=True)
        return x, scores

    def predict_tokens(self, x, cross_scores, source):
        """The model's output of what `decode` returned: logits [B, T, V].

        With `copy_words` it is log P [B, T, V + copy_words].
        """
        logits = self._logits(x)
        if self.pointer is None:
            return logits
        return self.pointer(x, logits, ops.mean(cross_scores[-1], axis=1), source)

    @property
    def output_table(self):
        """The output projection [V, D]."""
        if self.output_projection is None:
            return self.target_embedding.embeddings
        return ops.transpose(self.output_projection.kernel)

    def get_config(self):
        return {
            "config": dataclasses.asdict(self.config),
            "dtype": self.layer_policy,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(ModelConfig(**config["config"]), dtype=config["dtype"], name=config["name"])

    def _encode(self, source, **options):
        """The outputs of all encoder layers, and which places of them hold tokens."""
        x = self.source_embedding(self._known(source))  # [B, S, D]
        if self.source_positions is not None:
            x = self.source_positions(x)
        keep = masks.keep_tokens(source)
        x = self.source_dropout(x)
        return self.encoder(x, keep=keep, return_all_layers=True, **options), keep

    def _decode(self, outputs, memory_keep, target, **options):
        """The decoder's outputs from those of all encoder layers."""
        return self.decoder(
            self._embed_target(target),
            self.wiring(outputs),
            keep=masks.keep_tokens(target),
            memory_keep=memory_keep,
            **options,
        )

    def _embed_target(self, target, offset=0):
        x = self.target_embedding(self._known(target))  # [B, T, D]
        if self.target_positions is not None:
            x = self.target_positions(x, offset=offset)
        return self.target_dropout(x)

    def _known(self, ids):
        """Ids of the vocabulary: words that only the source has are read as unknown."""
        if self.pointer is None:
            return ids
        return ops.where(ids < self.config.vocabulary_size, ids, UNKNOWN)

    def _logits(self, x):
        if self.output_projection is None:
            return self.target_embedding(x, reverse=True)
        return self.output_projection(x)
