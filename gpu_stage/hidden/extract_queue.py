"""All shards of an order made by Celery workers of the queue `gpu`.

In: a piece of work, a Redis. Out: what became of its shards.
"""

import time
from collections import Counter
from collections.abc import Iterable

from rich.console import Console

from fleet import broker
from fleet.app import make_app
from fleet.work_claims import claimed_work
from gpu_stage.hidden.cut import Work
from gpu_stage.hidden.extract import Extracted
from gpu_stage.hidden.make import Outcome
from gpu_stage.progress import Bar
from gpu_stage.sending import Kind, Sending
from gpu_stage.tasks import EXTRACT, GPU


def extract_by_queue(work: Work, url: str, console: Console) -> Extracted:
    """Have workers make what is missing; returns when it is there, or cannot be made.

    Raises:
        LedgerUnavailable: Redis does not answer.
    """
    client = broker.connect(url)
    broker.ping(client)
    missing = {piece.name: piece for piece in work.pieces if not work.made(piece)}
    result = Extracted(Counter({Outcome.UP_TO_DATE: len(work.pieces) - len(missing)}))
    folder, began = str(work.folder), time.monotonic()

    def busy(names: Iterable[str]) -> bool:
        return any(claimed_work(client, folder, name) for name in names)

    sending = Sending(
        Kind(EXTRACT, GPU, "shards"), {name: (folder, name) for name in missing}, busy
    )
    samples = sum(piece.samples for piece in missing.values())
    with make_app(url) as app, Bar(console, EXTRACT, samples) as bar:
        while sending.left:
            result.failed |= sending.go_on(app, client)
            arrived = [name for name in sending.left if work.made(missing[name])]
            for name in arrived:
                bar.add(missing[name].samples, missing[name].tokens)
                result.tokens += missing[name].tokens
                result.outcomes[Outcome.MADE] += 1
            sending.done(arrived)
    result.seconds = time.monotonic() - began
    return result
