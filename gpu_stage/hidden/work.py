"""Work found again from the folder of its shards: what a worker on another machine begins with."""

from pathlib import Path

from gpu_stage.hidden import order as orders
from gpu_stage.hidden.cut import Work
from gpu_stage.hidden.source import open_source


def open_work(folder: Path) -> Work:
    """
    Args:
        folder: of the shards, with its `extract.json`.

    Raises:
        ConfigError: it has no order, or the source is not there.
        InputError: the source has no samples.
    """
    order = orders.read(folder)
    return Work(folder, order, open_source(Path(order.source)))
