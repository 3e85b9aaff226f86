"""An independent referee: the same model, the same search, in this package and in CTranslate2.

keras-transformer export RUN --format ctranslate2 --output DIR
python benchmarks/referee.py RUN DIR LINES [--lines 500] [--beams 4] [--length-penalty 0.6]
"""

import argparse
from itertools import islice

import ctranslate2
import numpy as np

import keras_transformer as kt
from keras_transformer.data.corpus import read_lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run")
    parser.add_argument("directory")
    parser.add_argument("input")
    parser.add_argument("--lines", type=int, default=500)
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--length-penalty", type=float, default=0.6)
    parsed = parser.parse_args()

    lines = list(islice(read_lines(parsed.input), parsed.lines))
    model, tokenizer = kt.load_run(parsed.run)
    decoding = kt.DecodingConfig(
        beams=parsed.beams,
        length_penalty=parsed.length_penalty,
        length_offset=0.0,  # as CTranslate2 has it
    )
    ours = [best[0] for best in kt.Translator(model, tokenizer, decoding).n_best(lines, 1)]
    theirs = ctranslate2.Translator(parsed.directory).translate_batch(
        [tokenizer.pieces(ids) for ids in tokenizer.encode(lines)],
        beam_size=parsed.beams,
        length_penalty=parsed.length_penalty,
        min_decoding_length=0,
        max_input_length=model.config.max_length,
        max_decoding_length=model.config.max_length,
        return_scores=True,
        return_end_token=True,
    )
    same = [one.tokens == other.hypotheses[0] for one, other in zip(ours, theirs, strict=True)]
    differences = [
        abs(one.score - other.scores[0]) for one, other in zip(ours, theirs, strict=True)
    ]
    print(f"the same: {np.mean(same):.1%} of {len(lines)} lines")
    print(f"scores differ by at most {max(np.array(differences)[same]):.1e} on those")


if __name__ == "__main__":
    main()
