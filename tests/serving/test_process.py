"""A server beside this process."""

import pytest
from keras_transformer_server.process import ServerProcess
from keras_transformer_server.settings import SettingsError


def test_one_that_cannot_start_says_why(tmp_path):
    with pytest.raises(SettingsError, match=r"did not start:(.|\n)*nothing to serve"):
        ServerProcess(tmp_path)


def test_it_ends_with_its_block(exported):
    with ServerProcess(exported.directory.parent, "--rest-port", "-1") as server:
        assert server.port > 0
        assert server.rest_port is None
        assert server.process.poll() is None
    assert server.process.returncode == 0
