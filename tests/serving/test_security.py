"""TLS, mutual TLS and tokens."""

import ssl
import urllib.error
import urllib.request

import grpc
import pytest
import trustme
from keras_transformer_client import CallError, Client
from keras_transformer_client.__main__ import main
from tensorflow_serving.apis import prediction_service_pb2_grpc

from tests.serving.conftest import refused, running
from tests.serving.test_api import request

SECRET = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Certificates: an authority, the server's, a client's, and a stranger's."""
    directory = tmp_path_factory.mktemp("tls")
    ours, others = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(directory / "ca.pem")
    for name, authority in (("server", ours), ("client", ours), ("stranger", others)):
        issued = authority.issue_cert("localhost", "127.0.0.1")
        issued.private_key_pem.write_to_path(directory / f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(directory / f"{name}.pem")
    (directory / "tokens").write_text(f"another-token\n{SECRET}\n")
    return directory


@pytest.fixture(scope="module")
def server(exported, files, tmp_path_factory):
    """A server that wants both a certificate and a token; the settings are in a file."""
    settings = files / "server.toml"
    settings.write_text(
        f'certificate = "{files}/server.pem"\nkey = "{files}/server.key"\n'
        f'client_ca = "{files}/ca.pem"\ntoken_file = "{files}/tokens"\n'
    )
    log = tmp_path_factory.mktemp("log") / "log"
    with running(exported.directory.parent, log, "--settings", settings) as server:
        yield server


def client(server, files, name="client", token=SECRET, **options):
    given = dict(tls=True, ca=files / "ca.pem", token=token, timeout=10)
    if name:
        given |= dict(certificate=files / f"{name}.pem", key=files / f"{name}.key")
    return Client(f"localhost:{server.port}", **given | options)


def test_who_has_a_certificate_and_a_token_is_let_in(server, files):
    with client(server, files) as good:
        assert good.healthy()
        assert good.translate("to be")
        assert list(good.stream("to be"))
    with client(server, files, token="another-token") as good:
        assert good.translate("to be")


def test_the_stubs_of_tensorflow_serving_are_let_in_as_well(server, files):
    credentials = grpc.ssl_channel_credentials(
        *((files / name).read_bytes() for name in ("ca.pem", "client.key", "client.pem"))
    )
    with grpc.secure_channel(f"localhost:{server.port}", credentials) as channel:
        predict = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict
        metadata = [("authorization", f"Bearer {SECRET}")]
        response = predict(request(text=["to be"]), metadata=metadata)
        assert response.outputs["text"].string_val
        assert refused(predict, request(text=["to be"]))[0] is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("token", [None, "wrong", SECRET[:-1], SECRET + "x"])
def test_who_has_no_token_is_not(server, files, token):
    with client(server, files, token=token) as bad:
        assert bad.healthy(), "everyone may ask whether it is well"
        for ask in (
            lambda: bad.translate("to be"),
            lambda: list(bad.stream("to be")),
            bad.metadata,
        ):
            with pytest.raises(CallError) as caught:
                ask()
            assert caught.value.code is grpc.StatusCode.UNAUTHENTICATED
            assert SECRET not in str(caught.value)


@pytest.mark.parametrize("name", [None, "stranger"])
def test_who_has_no_certificate_is_not(server, files, name):
    with client(server, files, name, timeout=1.5) as bad:
        assert not bad.healthy(timeout=1.5)
        with pytest.raises(CallError):
            bad.translate("to be")


def test_who_does_not_speak_tls_is_not(server):
    with Client(server.address, token=SECRET, timeout=1.5) as bad:
        assert not bad.healthy(timeout=1.5)


def test_a_client_does_not_trust_a_stranger(exported, files, tmp_path):
    flags = ("--certificate", files / "stranger.pem", "--key", files / "stranger.key")
    with (
        running(exported.directory.parent, tmp_path / "log", *flags) as server,
        Client(f"localhost:{server.port}", tls=True, ca=files / "ca.pem") as careful,
    ):
        assert not careful.healthy(timeout=1.5)


def test_rest_asks_for_the_same(server, files):
    url = f"https://localhost:{server.rest_port}/v1/models/default"
    context = ssl.create_default_context(cafile=files / "ca.pem")
    with pytest.raises((urllib.error.URLError, ConnectionError, ssl.SSLError)):
        urllib.request.urlopen(url, context=context)
    context.load_cert_chain(files / "client.pem", files / "client.key")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(url, context=context)
    assert caught.value.code == 401
    caught.value.close()
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {SECRET}"})
    with urllib.request.urlopen(request, context=context) as response:
        assert response.status == 200


def test_the_command_speaks_tls_too(server, files, capsys, monkeypatch):
    address = ["--address", f"localhost:{server.port}", "--ca", f"{files}/ca.pem"]
    flags = ["--certificate", f"{files}/client.pem", "--key", f"{files}/client.key"]
    monkeypatch.setenv("KERAS_TRANSFORMER_TOKEN", SECRET)
    assert main(["translate", "to be", *address, *flags]) == 0
    (files / "token").write_text(f"{SECRET}\n")
    monkeypatch.delenv("KERAS_TRANSFORMER_TOKEN")
    assert main(["translate", "to be", *address, *flags, "--token-file", f"{files}/token"]) == 0


def test_no_secret_is_in_the_log(server, files):
    with client(server, files) as good, client(server, files, token="wrong-token") as bad:
        good.translate("to be")
        with pytest.raises(CallError):
            bad.translate("to be")
        assert SECRET not in repr(good.connection)
    text = server.log.read_text()
    assert "another-token" not in text
    assert "wrong-token" not in text
    assert SECRET not in text
    assert "PRIVATE KEY" not in text
