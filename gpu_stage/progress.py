"""How far a stage is: a bar on a terminal, silence elsewhere."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Bar:
    """Rows done of all, with rows and tokens a second."""

    def __init__(self, console: Console, stage: str, rows: int) -> None:
        self._bar = Progress(
            TextColumn(stage),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rates]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(stage, total=rows, rates="")
        self._began, self._tokens = time.monotonic(), 0

    def __enter__(self) -> "Bar":
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def add(self, rows: int, tokens: int) -> None:
        self._tokens += tokens
        self._bar.update(self._task, advance=rows, rates=self._rates(rows))

    def _rates(self, rows: int) -> str:
        seconds = max(time.monotonic() - self._began, 0.001)
        done = self._bar.tasks[0].completed + rows
        return f"{done / seconds:,.0f} rows/s {self._tokens / seconds:,.0f} tokens/s"
