"""What is known of a target without its files: the quantisation its weights were released in, and
providers that are known to serve others.

From public listings and model cards, December 2026; `run.target` wins over it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownModel:
    """One model, by its OpenRouter id."""

    #: As OpenRouter spells quantisations.
    native: str
    #: Provider slugs that serve other weights than these.
    ignore: tuple[str, ...] = ()


#: Fireworks serves NVFP4 and BaseTen FP4; the released weights are INT4, group 32.
_KIMI = KnownModel("int4", ignore=("fireworks", "baseten"))
KNOWN_MODELS = {
    "moonshotai/kimi-k2-thinking": KnownModel("int4"),
    "moonshotai/kimi-k2.5": _KIMI,
    "moonshotai/kimi-k2.6": _KIMI,
}
