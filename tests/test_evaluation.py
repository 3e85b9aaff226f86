import pytest

from keras_transformer.evaluation import score


def test_a_perfect_translation_scores_a_hundred():
    lines = ["the cat sat on the mat", "a dog barked at the moon"]
    scores = score(lines, lines)
    assert scores[:3] == pytest.approx((100, 100, 100))


def test_exact_match_counts_whole_lines_and_bleu_rewards_parts():
    references = ["the cat sat on the mat today", "a dog barked at the moon tonight"]
    translations = ["the cat sat on the mat today", "a dog barked at a moon tonight"]
    scores = score(translations, references)
    assert scores.exact_match == 50
    assert 50 < scores.bleu < 100
    assert 50 < scores.chrf < 100


def test_case_and_tokens_can_be_taken_as_they_are():
    assert score(["The Cat sat on a mat ."], ["the cat sat on a mat ."]).bleu < 100
    same = score(["The Cat sat on a mat ."], ["the cat sat on a mat ."], "none", lowercase=True)
    assert same.bleu == pytest.approx(100)
    assert "case:lc" in same.signature
    assert "tok:none" in same.signature
