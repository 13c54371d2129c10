"""What a run is about to do, shown before it spends."""

from fleet.run_config import RunConfig
from producer.console import err
from producer.opening import Opened
from producer.progress import money
from producer.providers import endpoint_table


def show_plan(config: RunConfig, opened: Opened, base_url: str) -> None:
    """Print what was read, what was set aside, who may answer and what it may cost."""
    run = config.run
    for summary in opened.summaries:
        dataset = config.dataset(summary.dataset)
        budget = f"{dataset.budget_tokens:,} tokens" if dataset.budget_tokens else "no budget"
        text = f"{summary.dataset}: {summary.prompts:,} prompts, {budget}"
        if opened.rows[summary.dataset] < summary.prompts:
            text += f", limited to {opened.rows[summary.dataset]:,}"
        if summary.duplicates:
            text += f", {summary.duplicates:,} duplicates left out"
        if summary.rejected:
            reasons = ", ".join(f"{count:,} {kind}" for kind, count in summary.reasons.items())
            text += f", {summary.rejected:,} rows set aside in rejects/ ({reasons})"
        _say(text)
        if summary.changed:
            _say(f"  {summary.changed}")
    _say(
        f"{run.model} from {base_url}, at most {run.concurrency} in flight, "
        + (f"cap {money(run.cap_usd)}" if run.cap_usd else "no cap in dollars")
    )
    if opened.needs.note:
        _say(opened.needs.note)
    err.print(endpoint_table(opened.verdicts))


def _say(text: str) -> None:
    err.print(text, highlight=False, markup=False, soft_wrap=True)
