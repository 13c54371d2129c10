"""Evidence about samples, kept: what was measured once is not measured again.

`audit/<digest>/part-*.parquet` in the run's directory, one row a sample; the digest is of the
target's weights and the run's temperature and top-p. A row is found by its prompt and its ids, so
samples that were made anew are measured anew. Files are only added.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from fleet.errors import InputError
from gpu_stage.audit.measure import Rule
from gpu_stage.audit.verdict import Evidence
from gpu_stage.claimed_file import claim, finish

#: Of ids and spans, which tell one version of a sample from another.
KEY = pa.schema(
    [
        pa.field("dataset", pa.string()),
        pa.field("prompt_id", pa.string()),
        pa.field("ids", pa.string()),
    ]
)
SUMS = [pa.field(f.name, pa.int64() if f.type == "int" else pa.float64()) for f in fields(Evidence)]
SCHEMA = pa.schema([*KEY, *SUMS])


@dataclass(frozen=True)
class Key:
    """One version of one sample."""

    dataset: str
    prompt_id: str
    #: Hash of its ids and spans.
    ids: str


def key_of(
    dataset: str, prompt_id: str, ids: Sequence[int], spans: Sequence[tuple[int, int]]
) -> Key:
    text = json.dumps([ids, spans], separators=(",", ":"))
    return Key(dataset, prompt_id, hashlib.sha256(text.encode()).hexdigest()[:32])


class Store:
    """The evidence of a run under one rule."""

    def __init__(self, run: Path, target: str, rule: Rule) -> None:
        """
        Args:
            target: fingerprint of the target's weights.
        """
        shapes = json.dumps([target, rule.temperature, rule.top_p])
        self._folder = run / "audit" / hashlib.sha256(shapes.encode()).hexdigest()[:16]

    def read(self) -> dict[Key, Evidence]:
        """All that is there.

        Raises:
            InputError: a file is damaged.
        """
        found: dict[Key, Evidence] = {}
        for path in sorted(self._folder.glob("part-*.parquet")):
            try:
                rows = pq.ParquetFile(path).read().select(SCHEMA.names).to_pylist()
            except (pa.ArrowInvalid, KeyError) as error:
                raise InputError(
                    f"{path}: not evidence of an audit ({error}); delete it"
                ) from error
            for row in rows:
                key = Key(*(row.pop(name) for name in KEY.names))
                found[key] = Evidence(**row)
        return found

    def add(self, rows: Iterable[tuple[Key, Evidence]]) -> None:
        """Keep what was measured, durably."""
        values = [asdict(key) | asdict(evidence) for key, evidence in rows]
        if not values:
            return
        path = self._folder / f"part-{uuid4().hex}.parquet"
        with claim(path) as file:
            if file is None:
                raise InputError(f"{path}: another process writes a file of the same random name")
            pq.write_table(pa.Table.from_pylist(values, schema=SCHEMA), file, compression="zstd")
            finish(file, path)
