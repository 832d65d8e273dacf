"""One vLLM server, as launch/vllm_server.sh starts it: generation, and new weights."""

import asyncio
import dataclasses
import math
from collections.abc import Coroutine, Sequence
from typing import Any

from rime_jax.sampler import http
from rime_jax.sampler.http import Refused, Unavailable

# Seconds for the short calls; those that move weights get the time of a generation.
_SHORT_S = 10.0
# The label while weights are replaced: what the server holds then is nobody's version.
_NOTHING = "none"
_REMEDY = ("start it with launch/vllm_server.sh, from this version of rime_jax (it needs vLLM "
           "0.32 or newer)")


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a server generated.

    Attributes:
      ids: sampled ids, the stop token included when one was sampled.
      logprobs: of each, at temperature 1 over the full vocabulary.
      labels: of the weights that produced each.
    """

    ids: list[int]
    logprobs: list[float]
    labels: list[str]


class VllmServer:
    """HTTP calls to one server.

    Attributes:
      url: where it is.
      sessions: live sessions that are sent to it.
      failed: failures since its last answer to a generation.
      lock: held while its weights are looked at or replaced.
    """

    def __init__(self, url: str, timeout_s: float):
        """Args:
          url: `http://host:port`.
          timeout_s: seconds for one generation, and for the loading of weights.
        """
        self.url = url.rstrip("/")
        self.sessions = 0
        self.failed = 0
        self.lock = asyncio.Lock()
        self._timeout_s = timeout_s
        self._http = http.client()
        self._generating: set[asyncio.Task] = set()

    @property
    def requests(self) -> int:
        """Generations that it works on for us."""
        return len(self._generating)

    async def generate(
        self, ids: Sequence[int], *, max_new_tokens: int, temperature: float, seed: int,
        stop_ids: Sequence[int],
    ) -> Answer:
        """Samples behind `ids` until a stop id or `max_new_tokens`; a function of its arguments
        and the server's weights, up to rounding that depends on what else is in the batch.

        Raises:
          Unavailable, Refused: as `http.call`; the first also when `abandon` was called.
        """
        # Every field that a server could have a default for is given.
        sampling = {
            "max_tokens": max_new_tokens, "temperature": temperature, "seed": seed, "logprobs": 0,
            "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0,
            "presence_penalty": 0.0, "frequency_penalty": 0.0, "detokenize": False,
            "ignore_eos": True, "stop_token_ids": list(stop_ids),
        }
        work = asyncio.ensure_future(self._generate(ids, sampling))
        self._generating.add(work)
        try:
            await asyncio.wait({work})
        finally:
            self._generating.discard(work)
            work.cancel()
        if work.cancelled():
            raise Unavailable(f"{self.url} was given up while it generated")
        return _answer(self.url, work.result(), max_new_tokens, stop_ids)

    async def prompt_logprobs(self, ids: Sequence[int]) -> list[float]:
        """Log-probability of ids[1:], each behind those before it; [len(ids) - 1]."""
        sampling = {"max_tokens": 1, "temperature": 0.0, "detokenize": False, "prompt_logprobs": 0}
        found = await self._generate(ids, sampling)
        try:
            each = found["prompt_logprobs"][1:]
            return [float(at[str(i)]["logprob"]) for at, i in zip(each, ids[1:], strict=True)]
        except (KeyError, TypeError, ValueError) as error:
            raise Unavailable(f"{self.url} gave no log-probabilities of a prompt") from error

    async def check_health(self) -> None:
        """Raises Unavailable unless the server and its engine live."""
        await self._get("/health")

    async def max_tokens(self) -> int:
        """Tokens of the longest conversation that it admits.

        Raises:
          Refused: it is something else than a vLLM server.
        """
        found = await self._get("/v1/models")
        try:
            return int(found["data"][0]["max_model_len"])
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise Refused(f"{self.url} is no vLLM server; {_REMEDY}") from error

    async def label(self) -> str:
        """Of its weights; one that was just started calls them `default`.

        Raises:
          Refused: the server lacks what it needs to be a sampler's.
        """
        try:
            return (await self._get("/weight_info"))["weight_version"]
        except (KeyError, TypeError, Refused) as error:
            raise Refused(f"{self.url} cannot be given weights; {_REMEDY}: {error}") from error

    async def load(self, directory: str, label: str) -> None:
        """Replaces its weights by those of a model directory that it can read.

        Generations in progress stand still meanwhile and go on with the new weights, their caches
        computed again; the labels of their tokens tell the two parts apart.
        """
        await self._post("/pause?mode=keep")
        # Whatever fails below, the old label must not stay on weights that are no longer whole.
        await self._post("/update_weight_version", {"new_version": _NOTHING})
        await self._post("/collective_rpc",
                         {"method": "load_rime_weights", "kwargs": {"directory": directory}})
        reset = await self._post("/reset_prefix_cache?reset_running_requests=true")
        if reset != {"success": True}:
            raise Unavailable(f"{self.url} kept a cache of the old weights")
        await self._post("/update_weight_version", {"new_version": label})
        await self._post("/resume")

    def abandon(self) -> None:
        """Ends the generations in progress here; each raises Unavailable to its caller."""
        for work in self._generating:
            work.cancel()

    async def close(self) -> None:
        """Ends its generations and connections."""
        self.abandon()
        await self._http.aclose()

    def _generate(self, ids: Sequence[int], sampling: dict[str, Any]) -> Coroutine:
        return self._post(
            "/inference/v1/generate", {"token_ids": list(ids), "sampling_params": sampling})

    async def _get(self, path: str) -> Any:
        return await self._call("GET", path, None, _SHORT_S)

    async def _post(self, path: str, body: Any = None) -> Any:
        return await self._call("POST", path, body, self._timeout_s)

    async def _call(self, method: str, path: str, body: Any, timeout_s: float) -> Any:
        return await http.call(self._http, method, self.url + path, body, timeout_s=timeout_s)


def _answer(url: str, found: Any, max_new_tokens: int, stop_ids: Sequence[int]) -> Answer:
    """A checked answer; what is not whole counts as none."""
    try:
        choice = found["choices"][0]
        ids = choice["token_ids"]
        content = choice["logprobs"]["content"]
        logprobs = [float(c["logprob"]) for c in content]
        labels = [span["version"] for span in choice["weight_versions"] or []
                  for _ in range(span["start"], span["end"])]
        if choice["finish_reason"] not in ("stop", "length"):
            raise ValueError(f"finish_reason = {choice['finish_reason']!r}")
        if [c["token_id"] for c in content] != ids or len(labels) != len(ids) or not ids:
            raise ValueError("tokens, log-probabilities and labels do not belong together")
        if any(type(i) is not int or i < 0 for i in ids):
            raise ValueError(f"token_ids = {ids!r}")
        if len(ids) > max_new_tokens or (len(ids) < max_new_tokens and ids[-1] not in stop_ids):
            raise ValueError(f"{len(ids)} tokens of {max_new_tokens}, without a stop token")
        if not all(map(math.isfinite, logprobs)):
            raise ValueError("log-probabilities are not finite")
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise Unavailable(f"{url} gave an answer that cannot be used ({error!r}); {_REMEDY}"
                          ) from error
    return Answer(ids, logprobs, labels)
