"""How good translations are: BLEU, chrF, exact match."""

from collections.abc import Sequence
from typing import NamedTuple

import sacrebleu


class Scores(NamedTuple):
    """Scores of a corpus, each between 0 and 100."""

    bleu: float
    chrf: float
    exact_match: float
    signature: str

    def __str__(self):
        return (
            f"BLEU {self.bleu:.2f}  chrF {self.chrf:.2f}  exact match {self.exact_match:.2f} %\n"
            f"BLEU's signature: {self.signature}"
        )


def score(
    translations: Sequence[str],
    references: Sequence[str],
    tokenize: str = "13a",
    lowercase: bool = False,
) -> Scores:
    """Scores translations against one reference each.

    Args:
        translations: what the model wrote.
        references: what it should have written.
        tokenize: sacrebleu's tokenizer for BLEU: "13a", "none" for text that is tokens already,
            "zh", "char", "intl".
        lowercase: whether BLEU ignores case.

    Example:

    >>> from keras_transformer.evaluation import score
    >>> print(score(["the cat sat on the mat"], ["the cat sat on a mat"]).exact_match)
    0.0
    """
    # Forced, or it would warn of text that is split already.
    bleu = sacrebleu.BLEU(tokenize=tokenize, lowercase=lowercase, force=True)
    same = sum(one == other for one, other in zip(translations, references, strict=True))
    return Scores(
        bleu=bleu.corpus_score(translations, [references]).score,
        chrf=sacrebleu.CHRF().corpus_score(translations, [references]).score,
        exact_match=100 * same / len(references),
        signature=str(bleu.get_signature()),
    )
