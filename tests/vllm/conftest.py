"""A real vLLM server with a tiny random Qwen3, started by launch/vllm_server.sh."""

import os
import pathlib
import signal
import socket
import subprocess
import time

import jax
import pytest

from rime_jax.envs.alchemy import text_compact
from rime_jax.policy import qwen3, weights, words

ROOT = pathlib.Path(__file__).parents[2]
TOKENIZER = words.word_tokenizer(text_compact.WORDS)
CONTEXT = 256
# vLLM's CPU attention takes heads of 32 and more.
POLICY = qwen3.Qwen3(qwen3.Qwen3Config(
    vocab_size=len(TOKENIZER), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=1, head_dim=32, initializer_range=0.15,
    max_position_embeddings=CONTEXT))


def pytest_collection_modifyitems(items):
    here = pathlib.Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            if "RIME_VLLM_PYTHON" not in os.environ:
                item.add_marker(pytest.mark.skip(
                    "RIME_VLLM_PYTHON names no Python with vLLM; launch/setup_vllm.sh makes one"))


class Server:
    """The process group of launch/vllm_server.sh on a port of its own."""

    def __init__(self, model, directory):
        self._model, self._log = model, directory / "vllm.log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self):
        """Starts it; does not wait."""
        self._process = subprocess.Popen(
            [ROOT / "launch/vllm_server.sh", "--port", str(self.port), self._model],
            stdout=open(self._log, "a"), stderr=subprocess.STDOUT, start_new_session=True)
        return self

    def wait(self):
        """Until it says that it is ready; seconds."""
        began = time.monotonic()
        while f"ready: {self.url}" not in self._log.read_text():
            assert self._process.poll() is None, self._log.read_text()[-4000:]
            time.sleep(0.5)
        return time.monotonic() - began

    def kill(self):
        """Everything at once, as a lost machine does."""
        for pid in _descendants(self._process.pid):
            os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._log.write_text("")

    def stop(self):
        """As Ctrl-C does; the script's exit status."""
        self._process.terminate()
        return self._process.wait()

    def left(self):
        """Processes of it that still live."""
        return [pid for pid in _all() if f"--port {self.port}" in _command(pid)]


def _all():
    return [int(p.name) for p in pathlib.Path("/proc").iterdir() if p.name.isdigit()]


def _command(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def _parent(pid):
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _descendants(root):
    found = [root]
    parents = {pid: _parent(pid) for pid in _all()}
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """Directory of the model that the server starts with, which is nobody's version."""
    directory = tmp_path_factory.mktemp("model") / "tiny"
    weights.save(directory, POLICY, POLICY.init(jax.random.key(99)), TOKENIZER)
    return directory


@pytest.fixture(scope="session")
def server(model, tmp_path_factory):
    server = Server(model, tmp_path_factory.mktemp("server")).start()
    print(f"vLLM was ready after {server.wait():.0f} s")
    yield server
    server.stop()
