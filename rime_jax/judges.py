"""Makes the judge that `judge.kind` names."""

import os
import pathlib

import httpx2
import ml_collections

from rime_jax import errors
from rime_jax.judge import base, client, lexical
from rime_jax.rollout.domain import Domain

_CHECK_S = 10.0


def make(
    config: ml_collections.ConfigDict, domain: Domain, run: pathlib.Path | None
) -> base.Judge | None:
    """The judge of a valid configuration; None where nothing is to be judged.

    Args:
      domain: whose memories it reads.
      run: directory of the run, which keeps the verdicts unless `judge.cache_dir` does; None:
        they are not kept.
    """
    own = config.judge
    if own.kind == "none":
        return None
    if own.kind == "lexical":
        return lexical.LexicalJudge(domain.memory_format)
    cache = pathlib.Path(own.cache_dir) if own.cache_dir else run and run / "judge_cache"
    return client.ServerJudge(
        own.urls, own.model, domain.judge_words, concurrency=own.concurrency,
        timeout_s=own.timeout_s, retries=own.retries, cache=cache,
    )


def verdict_limit_s(config: ml_collections.ConfigDict) -> float | None:
    """Seconds that the rollout loop waits for a verdict; None: the judge sees to it.

    Verdicts of a server wait for their turn, each of their requests has its own limit, and none
    waits for a server that is left out.
    """
    return None if config.judge.kind == "server" else config.judge.timeout_s


def check_serves(config: ml_collections.ConfigDict) -> None:
    """Looks whether one of the judge's servers is there and serves its model.

    Raises:
      TransientError: says what each answered; a training without exploration scores must be meant.
    """
    if config.judge.kind != "server":
        return
    found = {url: _served(url, config.judge.model) for url in config.judge.urls}
    if None in found.values():
        return
    raise errors.TransientError(
        "judge.kind = 'server', and no server can be asked: "
        + "; ".join(f"{url}: {what}" for url, what in found.items())
        + ". Start one (launch/judge_server.sh), or correct judge.urls, judge.model or the key in "
          f"{client.API_KEY_VARIABLE}"
    )


def _served(url: str, model: str) -> str | None:
    """What stands in the way of asking `model` at a server; None: nothing that can be seen."""
    key = os.environ.get(client.API_KEY_VARIABLE)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    base = url.rstrip("/")
    try:
        answer = httpx2.get(f"{base}/models", timeout=_CHECK_S, headers=headers)
        if answer.status_code in (404, 405):
            return _answers(base, headers)  # A server need not have this list.
        if answer.status_code != 200:
            return f"HTTP {answer.status_code}"
        names = [entry["id"] for entry in answer.json()["data"]]
    except httpx2.HTTPError as error:
        return f"{type(error).__name__} {error}".rstrip()
    except (ValueError, LookupError, TypeError):
        return "its list of models cannot be read"
    return None if model in names else f"serves {', '.join(map(str, names[:5]))}, not {model}"


def _answers(base: str, headers: dict[str, str]) -> str | None:
    """What `_served` says of a server without a list of models."""
    # Without a model and messages it is refused at once, and costs nothing.
    answer = httpx2.post(f"{base}/chat/completions", json={}, timeout=_CHECK_S, headers=headers)
    if answer.status_code not in (404, 405):
        return None
    return (f"HTTP {answer.status_code} for {base}/chat/completions; the base of most servers ends "
            "in /v1")
