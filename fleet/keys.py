"""The names of a run's Redis keys: the only place that spells them.

All keys of a run share the hash tag `{<run>}`, so they lie in one slot of a Redis Cluster
and one script may touch them all. Every script receives all of them, in `SCRIPT_KEYS` order.

| key         | type   | members                                                          | until |
|---|---|---|---|
| run         | hash   | config, state, routes, money in nano-USD, counters, the limit    | – |
| datasets    | hash   | `<dataset>|<counter>` → integer                                  | – |
| prompts     | hash   | prompt_id → `<dataset>\\n<payload JSON>` while it is unfinished | done    |
| waiting     | zset   | prompt_id by the time (ms) from which the feeder may send it     | sent |
| queued      | zset   | prompt_id by the time (ms) its task message was sent             | claim |
| claims      | zset   | prompt_id by the time (ms) its claim expires                     | done |
| claim       | hash   | prompt_id → `FIELDS` of `lua/_common.lua`, joined by `|`         | done |
| expired     | hash   | fence of an expired claim → nano-USD presumed spent`|`at most    | answer |
| settled     | zset   | fence by time (ms) of its settling: a repeated call does nothing | 1 h |
| attempts    | hash   | prompt_id → failed attempts so far                               | done |
| done        | hash   | prompt_id → fence of the claim that completed it                 | – |
| failures    | hash   | prompt_id → JSON: dataset, kind, reason, attempts, time          | retry |
| completions | stream | one `fleet.records.Event` (`m`) and its body (`r`) per response | on disk |
| errors      | hash   | kind of failed attempt → count; `last:<kind>` → last message     | – |
| endpoints   | hash   | `<tag>|<field>`, as `lua/_endpoints.lua` lists them              | – |
| workers     | hash   | worker → `<last ms>|<capacity>|<in flight>|<first ms>|<requests>` | 30 s |
"""

SCRIPT_KEYS = (
    "run",
    "datasets",
    "prompts",
    "waiting",
    "queued",
    "claims",
    "claim",
    "expired",
    "settled",
    "attempts",
    "done",
    "failures",
    "completions",
    "errors",
    "endpoints",
    "workers",
)


class Keys:
    """The key names of one run."""

    def __init__(self, run: str) -> None:
        self.run_name = run
        self._prefix = f"fleet:{{{run}}}:"
        self.all = [self._prefix + name for name in SCRIPT_KEYS]

    def __getattr__(self, name: str) -> str:
        if name not in SCRIPT_KEYS:
            raise AttributeError(f"the ledger has no key {name!r}")
        return self._prefix + name


def work_claim(folder: str, name: str) -> str:
    """The claim of a GPU worker on a piece of work: a string, until a minute after its last
    sign of life. It belongs to no run: a set is made of several."""
    return f"fleet:work:{folder}:{name}"
