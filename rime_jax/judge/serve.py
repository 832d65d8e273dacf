"""A judge in a process of its own, which any training can ask over the OpenAI chat protocol.

    python -m rime_jax.judge.serve --model=DIRECTORY                   a language model
    python -m rime_jax.judge.serve --model=lexical --config=FILE       the lexical judge, for tests

Large judges run under vLLM (launch/judge_server.sh starts either). SIGTERM and Ctrl-C stop it.
"""

import argparse
import asyncio
import logging
import pathlib
import signal
from collections.abc import Sequence

from rime_jax import domains, experiment
from rime_jax.config import ConfigError
from rime_jax.judge import backends
from rime_jax.judge.chat_server import Answer, ChatServer

LEXICAL = "lexical"


def main(argv: Sequence[str] | None = None) -> None:
    parser = _parser()
    arguments = parser.parse_args(argv)
    if (arguments.model == LEXICAL) != (arguments.config is not None):
        parser.error("--config names the domain of --model=lexical, and is for that alone")
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    with experiment.clean_errors():
        answer = _answer(arguments)
        name = arguments.name or pathlib.Path(arguments.model).resolve().name
        asyncio.run(_serve(answer, name, arguments.host, arguments.port))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", required=True,
                        help="a model directory in Hugging Face layout, or 'lexical'")
    parser.add_argument("--name", default="",
                        help="what requests call the model (judge.model); default: the last part of"
                             " --model")
    parser.add_argument("--host", default="127.0.0.1",
                        help="where to listen; whoever reaches it can use it. Default: %(default)s")
    parser.add_argument("--port", type=int, default=8100,
                        help="0: any free one. Default: %(default)s")
    parser.add_argument("--context", type=int, default=4096,
                        help="tokens of a question and its reply. Default: %(default)s")
    parser.add_argument("--slots", type=int, default=8,
                        help="questions worked on together; a multiple of the local devices. "
                             "Default: %(default)s")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32",
                        help="of activations. Default: %(default)s")
    experiment.add_arguments(parser, required=False)
    return parser


def _answer(arguments: argparse.Namespace) -> Answer:
    """The backend that the arguments name."""
    if arguments.model == LEXICAL:
        config = experiment.read(arguments.config, arguments.set)
        return backends.lexical(domains.make(config).memory_format)
    from rime_jax.policy import weights

    print(f"Loading {arguments.model} …", flush=True)
    try:
        return backends.model(
            weights.resolve(arguments.model), arguments.dtype, arguments.context, arguments.slots)
    except ValueError as error:
        raise ConfigError(str(error)) from error


async def _serve(answer: Answer, name: str, host: str, port: int) -> None:
    loop = asyncio.get_running_loop()
    try:
        server = ChatServer(answer, name, host, port, loop)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--host {host} --port {port}: {error}; choose another") from error
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server.start()
    print(f"ready: judge.urls={server.url} judge.model={name}", flush=True)
    await stop.wait()
    await asyncio.to_thread(server.shutdown)
    server.server_close()


if __name__ == "__main__":
    main()
