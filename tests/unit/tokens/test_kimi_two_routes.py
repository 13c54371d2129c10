"""Kimi's split pattern by two independent routes: tiktoken, and a Hugging Face fast tokenizer.

The corpus is made here, the same every time: words of the vocabulary itself, by script, with
spaces, digits, punctuation and code between them.
"""

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

import tokens
from tokens.families.kimi import PATTERN
from tokens.tiktoken_codec import LONGEST_RUN, LONGEST_TEXT, cut, read_ranks

SCRIPTS = {
    "latin": "a-zA-ZÀ-ɏ",
    "greek": "Ͱ-Ͽ",
    "cyrillic": "Ѐ-ӿ",
    "hebrew": "֐-׿",
    "arabic": "؀-ۿ",
    "devanagari": "ऀ-ॿ",
    "thai": "฀-๿",
    "hangul": "가-힣",
    "kana": "぀-ヿ",
    "han": "一-鿿",
}
GLUE = [
    " ",
    " ",
    " ",
    "",
    "\n",
    "\n\n",
    "  ",
    "\t",
    "\r\n",
    ", ",
    ". ",
    "—",
    " (",
    ") ",
    "…",
    "'s ",
    "'LL",
]
CODE = [
    "def f_{n}(x: int, *, y=None) -> dict[str, list]:\n    return {{'a': x*{n}, \"b\": [y] * 3}}\n",
    "for (int i = {n}; i < 0x{n:X}; ++i) {{ buf[i] ^= ~mask << 3; }}\n\n",
    "SELECT `id`, COUNT(*) FROM t{n} WHERE a <> '%s' GROUP BY 1;\n",
    "<div class=\"c-{n}\"><a href='https://example.org/?q={n}&r=%20'>&nbsp;…</a></div>\r\n",
    '\t\tif err != nil {{\n\t\t\treturn fmt.Errorf("%w: {n}", err)\n\t\t}}\n',
    "{n}.{n}e-{n} ½ ٣٤٥ १२३ Ⅷ e\u0301\u0323 👩🏽‍🚀 🇺🇳 ﬁ ǅ ʰ x\u0300y\n",
]


@pytest.fixture(scope="module")
def ranks(folder_of: Callable[[str], Path]) -> dict[bytes, int]:
    """The vocabulary."""
    return read_ranks(folder_of("kimi") / "tiktoken.model")


@pytest.fixture(scope="module")
def converted(ranks: dict[bytes, int]) -> Tokenizer:
    """A fast tokenizer of the same vocabulary, which merges by pairs and not by ranks."""
    letter = pytest.importorskip("transformers.convert_slow_tokenizer").bytes_to_unicode()
    spelt = {token: "".join(letter[byte] for byte in token) for token in ranks}
    merges = [
        (spelt[token[:at]], spelt[token[at:]])
        for token in sorted(ranks, key=ranks.__getitem__)
        for at in sorted(
            _splits(token, ranks), key=lambda at: (ranks[token[:at]], ranks[token[at:]])
        )
    ]
    model = models.BPE({spelt[token]: rank for token, rank in ranks.items()}, merges)
    tokenizer = Tokenizer(model)
    split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, letters])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _splits(token: bytes, ranks: dict[bytes, int]) -> list[int]:
    """Where a token may have been merged: both parts are tokens."""
    return [at for at in range(1, len(token)) if token[:at] in ranks and token[at:] in ranks]


def words(ranks: dict[bytes, int]) -> dict[str, list[str]]:
    """Tokens that are text, by the script of their letters."""
    found: dict[str, list[str]] = defaultdict(list)
    patterns = {name: re.compile(f" ?[{letters}]+") for name, letters in SCRIPTS.items()}
    for token in ranks:
        text = token.decode("utf-8", "ignore")
        for name, pattern in patterns.items():
            if text.encode() == token and pattern.fullmatch(text):
                found[name].append(text)
    return found


def corpus(ranks: dict[bytes, int], size: int) -> Iterator[str]:
    """Texts of one script or of code each, until there are `size` bytes of them."""
    chance, vocabulary = random.Random(2026), words(ranks)
    kinds = [*SCRIPTS, "code", "mixed"]
    while size > 0:
        kind = kinds[chance.randrange(len(kinds))]
        if kind == "code":
            pieces = [chance.choice(CODE).format(n=chance.randrange(10**6)) for _ in range(40)]
        else:
            pieces = []
            for _ in range(400):
                script = chance.choice(list(SCRIPTS)) if kind == "mixed" else kind
                pieces += [chance.choice(vocabulary[script]), chance.choice(GLUE)]
        text = "".join(pieces)
        size -= len(text.encode())
        yield text


def test_both_routes_give_the_same_ids(
    kimi: tokens.Renderer, converted: Tokenizer, ranks: dict[bytes, int]
) -> None:
    """Over more than a megabyte in ten scripts and code, token for token."""
    assert set(words(ranks)) == set(SCRIPTS)
    texts = list(corpus(ranks, 1_200_000))
    assert sum(len(text.encode()) for text in texts) > 1_000_000
    for text in texts:
        ids = kimi.encode(text)
        assert converted.encode(text).ids == ids
        assert kimi.decode(ids) == text


@pytest.mark.parametrize("size", [LONGEST_RUN - 1, LONGEST_RUN, LONGEST_RUN + 1, LONGEST_TEXT + 7])
def test_cuts_lose_nothing_and_leave_no_long_run(size: int) -> None:
    """Pieces put together are the text; none is longer than a text or has a run past the limit."""
    text = "x" * size + " " * size + "y"
    pieces = list(cut(text))
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= LONGEST_TEXT
    assert max(len(run) for piece in pieces for run in re.findall(r"\s+|\S+", piece)) <= LONGEST_RUN
    if size < LONGEST_RUN:
        assert pieces == [text]


def test_a_run_is_cut_where_the_model_s_own_tokenizer_cuts_it(kimi: tokens.Renderer) -> None:
    """A run of 25,001 letters is tokenised as 25,000 and 1, and so counts as it is billed."""
    head, tail = kimi.encode("a" * LONGEST_RUN), kimi.encode("a")
    assert kimi.encode("a" * (LONGEST_RUN + 1)) == head + tail
    assert (
        kimi.encode(" b" + "a" * LONGEST_RUN) == kimi.encode(" b" + "a" * (LONGEST_RUN - 1)) + tail
    )
