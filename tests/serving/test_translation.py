"""The service of our own, and the client in both of its forms."""

import asyncio
import time

import grpc
import numpy as np
import pytest
import tensorflow as tf
from keras_transformer_client import AsyncClient, CallError, Client, protos
from keras_transformer_client.__main__ import main

from tests.serving.conftest import refused, wait_until
from tests.serving.test_api import metrics

LINES = ["to be", "or not to be that is the question", "", "tis nobler"]
LONG = "whether tis nobler in the mind to suffer"


@pytest.fixture(scope="module")
def client(server):
    with Client(server.address) as client:
        yield client


def said(exported, signature, lines, **inputs):
    found = exported.load().signatures[signature](text=tf.constant(lines), **inputs)
    return {name: value.numpy() for name, value in found.items()}


def decoded(texts):
    return [text.decode() for text in texts]


def translate(channel, **fields):
    call = channel.unary_unary(
        "/keras_transformer.v1.Translation/Translate",
        request_serializer=protos.TranslateRequest.SerializeToString,
        response_deserializer=protos.TranslateResponse.FromString,
    )
    return call(protos.TranslateRequest(model=protos.Model(name="default"), **fields))


def test_text_becomes_text(client, exported):
    expected = decoded(said(exported, "serving_default", LINES)["text"])
    assert client.translate(LINES) == expected
    assert client.translate(LINES[1]) == expected[1]
    assert client.translate([]) == []
    assert client.translate(LINES, greedy=True) == decoded(said(exported, "greedy", LINES)["text"])


def test_a_prefix_is_kept_and_a_draw_repeats(client):
    assert client.translate("to be", prefix="not").startswith("not")
    drawn = [client.translate([LONG] * 4, temperature=1.5, seed=7) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) > 1, "each text has a seed of its own"
    assert client.translate(LONG, temperature=0.0) == client.translate(LONG, greedy=True)
    with pytest.raises(ValueError, match="greedy and temperature: choose one"):
        client.translate("to be", greedy=True, temperature=1.0)


def test_hypotheses_have_scores_tokens_and_alignments(client, exported):
    expected = said(exported, "n_best", LINES)
    for row, hypotheses in enumerate(client.n_best(LINES)):
        np.testing.assert_allclose(
            [one.score for one in hypotheses],
            [score for score in expected["score"][row] if score > -np.inf],
            rtol=1e-4, atol=1e-5,
        )  # fmt: skip
        for hypothesis in hypotheses:
            assert hypothesis.alignment.shape == (
                len(hypothesis.tokens),
                len(hypothesis.source_tokens),
            )
            np.testing.assert_allclose(hypothesis.alignment.sum(1), 1.0, rtol=1e-4)
    best = client.n_best(LONG)[0]
    assert best.text == client.translate(LONG)
    scores = said(exported, "score", LINES, target=tf.constant(LINES[::-1]))["score"]
    assert client.score(LINES, LINES[::-1]) == pytest.approx(scores.tolist(), rel=1e-4)
    assert client.score(LINES[0], LINES[-1]) == pytest.approx(scores[0], rel=1e-4)


def test_any_signature_can_be_asked_and_described(client, exported):
    found = client.predict("decode_ids", ids=np.int32([[5, 6, 7]]), lengths=np.int32([3]))
    expected = exported.load().signatures["decode_ids"](
        ids=tf.constant([[5, 6, 7]]), lengths=tf.constant([3])
    )
    np.testing.assert_array_equal(found["ids"], expected["ids"])
    described = client.metadata()["decode_ids"]
    assert described["inputs"]["ids"].shape == (None, None)
    assert described["inputs"]["ids"].dtype == "int32"
    assert client.metadata()["greedy"]["outputs"]["text"].dtype == "string"


def test_tokens_come_as_they_are_decoded(client, exported):
    tokens = list(client.stream(LONG))
    assert [token.finished for token in tokens] == [False] * (len(tokens) - 1) + [True]
    expected = said(exported, "greedy", [LONG])
    assert tokens[-1].text == expected["text"][0].decode()
    assert len(tokens) >= expected["lengths"][0]
    pieces = "".join(token.token for token in tokens[: expected["lengths"][0]])
    assert pieces.replace("▁", " ").strip() == tokens[-1].text
    assert not tokens[-1].truncated
    assert [token.finished for token in client.stream("")] == [True]


def test_a_stream_that_is_left_stops_the_work(client, server):
    before = metrics(server)["keras_transformer_tokens_total"]
    for _ in client.stream("mind " * 9):
        break
    wait_until(lambda: metrics(server)["keras_transformer_streams"] == 0)
    done = metrics(server)["keras_transformer_tokens_total"]
    time.sleep(0.3)
    assert metrics(server)["keras_transformer_tokens_total"] == done
    assert done - before < len(list(client.stream("mind " * 9)))


def test_the_client_of_asyncio_does_the_same(client, server):
    async def ask():
        async with AsyncClient(server.address) as other:
            assert await other.healthy()
            assert await other.translate(LINES) == client.translate(LINES)
            tokens = [token async for token in other.stream(LONG)]
            assert tokens == list(client.stream(LONG))
            several = await asyncio.gather(*(other.translate(line) for line in LINES))
            assert several == client.translate(LINES)
            with pytest.raises(CallError, match="signature_name is 'no'"):
                await other.predict("no", text=["a"])

    asyncio.run(ask())


def test_what_the_server_refuses_is_raised_with_its_words(client):
    with pytest.raises(CallError, match=r"NOT_FOUND: model_spec\.signature_name is 'no'") as caught:
        client.predict("no", text=["a"])
    assert caught.value.code is grpc.StatusCode.NOT_FOUND
    with pytest.raises(CallError, match="INVALID_ARGUMENT"):
        list(client.stream("a" * 20_001))


def test_a_server_that_is_not_there(tmp_path):
    with Client("127.0.0.1:1") as nobody:
        assert not nobody.healthy()
        began = time.monotonic()
        with pytest.raises(CallError) as caught:
            nobody.translate("to be", timeout=1.0)
        assert caught.value.code in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
        )
        assert time.monotonic() - began > 0.4, "it did not try again"


def test_a_version_can_be_asked_for(server):
    with Client(server.address, version=1) as right, Client(server.address, version=2) as wrong:
        assert right.translate("to be")
        with pytest.raises(CallError, match="version is 2"):
            wrong.translate("to be")
        assert list(right.stream("to be"))


def test_options_that_make_no_sense_are_refused():
    for options, words in [
        (dict(version=1, label="a"), "version and label"),
        (dict(ca="a.pem"), "give tls=True"),
        (dict(tls=True, key="a.pem"), "give both"),
    ]:
        with pytest.raises(ValueError, match=words):
            Client("localhost:1", **options)
    with pytest.raises(ValueError, match="for all to read"):
        Client("example.org:1", token="secret")


def test_the_service_gives_hypotheses(server, exported):
    expected = said(exported, "n_best", [LONG])
    with server.channel() as channel:
        response = translate(channel, text=[LONG], n_best=2, alignment=True)
        (sentence,) = response.sentences
        assert response.version == 1
        assert [one.text for one in sentence.hypotheses] == decoded(expected["text"][0, :2])
        for hypothesis in sentence.hypotheses:
            assert len(hypothesis.alignment) == len(hypothesis.tokens) > 0
            for row in hypothesis.alignment:
                assert len(row.weights) == len(sentence.source_tokens)
        (best,) = translate(channel, text=[LONG]).sentences[0].hypotheses
        assert best.text == decoded(expected["text"][0])[0]
        assert not best.tokens
        assert translate(channel, text=[LONG * 9]).sentences[0].truncated
        (greedy,) = translate(channel, text=[LONG], greedy=True).sentences[0].hypotheses
        assert greedy.text == said(exported, "greedy", [LONG])["text"][0].decode()
        (drawn,) = (
            translate(channel, text=[LONG], sampling=protos.Sampling(temperature=0.0))
            .sentences[0]
            .hypotheses
        )
        assert drawn.text == greedy.text
        (begun,) = translate(channel, text=["to be"], prefix=["not"]).sentences[0].hypotheses
        assert begun.text.startswith("not")
        assert not translate(channel).sentences


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (dict(greedy=True, n_best=3), "greedy and n_best are given"),
        (dict(prefix=["a"], sampling=protos.Sampling()), "sampling and prefix are given"),
        (dict(prefix=["a", "b"]), "prefix has 2 values for 1 texts"),
        (dict(n_best=-1), "n_best is -1"),
        (dict(n_best=99), "n_best is 99; the model was exported with 4 beams"),
    ],
)
def test_options_that_do_not_go_together_are_refused(server, fields, words):
    with server.channel() as channel:
        code, details = refused(translate, channel, text=["to be"], **fields)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert words in details


def test_the_command_translates(server, client, capsys, monkeypatch, tmp_path):
    address = ["--address", server.address]
    assert main(["translate", *LINES[:2], *address]) == 0
    assert capsys.readouterr().out.splitlines() == client.translate(LINES[:2])
    assert main(["translate", "--stream", LONG, *address]) == 0
    assert capsys.readouterr().out == client.translate(LONG, greedy=True) + "\n"
    source = tmp_path / "lines"
    source.write_text("\n".join(LINES * 100) + "\n")
    with source.open() as lines:
        monkeypatch.setattr("sys.stdin", lines)
        assert main(["translate", "--greedy", *address]) == 0
    assert capsys.readouterr().out.splitlines() == client.translate(LINES, greedy=True) * 100
    assert main(["health", *address]) == 0
    assert main(["metadata", *address]) == 0
    assert "input text: string ['any']" in capsys.readouterr().out
    assert main(["translate", "a", "--model", "other", *address]) == 1
    assert "model_spec.name is 'other'" in capsys.readouterr().err
    assert main(["translate", "a", "--token-file", "/no/such", *address]) == 2
