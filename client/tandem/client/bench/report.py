"""What a run measured: percentiles, throughput, goodput under an objective; as JSON, and two runs side by side."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tandem.client.bench.load import Record

FORMAT = 1  # of the JSON
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
TIMES = {
    "ttft": "time to first token",
    "gap": "gap between arrivals of tokens",
    "tpot": "time per output token after the first",
    "e2e": "end to end",
}


@dataclass(frozen=True, slots=True)
class Run:
    """A run as it is kept: what was asked of whom, and each request."""

    target: str
    started: str  # ISO 8601
    settings: Mapping[str, Any]  # of the load, as given
    slo: Mapping[str, float]  # seconds, by the names of TIMES; a request's longest gap counts
    seconds: float
    records: Sequence[Record]

    def times(self, name: str) -> list[float]:
        """All values of one of TIMES, of requests that were answered, in order."""
        answered = [record for record in self.records if not record.error]
        if name == "gap":
            return sorted(gap for record in answered for gap in record.gaps)
        values = (getattr(record, name) for record in answered)
        return sorted(value for value in values if value is not None)

    def good(self, record: Record) -> bool:
        """Tells whether a request was answered within the objective."""
        if record.error:
            return False
        found = {
            "ttft": record.ttft,
            "gap": max(record.gaps, default=None),
            "tpot": record.tpot,
            "e2e": record.e2e,
        }
        return all((value := found[name]) is None or value <= limit for name, limit in self.slo.items())

    def summary(self) -> dict[str, Any]:
        """The numbers of a run."""
        answered = [record for record in self.records if not record.error]
        prompt = sum(record.prompt_tokens for record in answered)
        output = sum(record.output_tokens for record in answered)
        good = sum(map(self.good, self.records))
        span = self.seconds or math.nan
        return {
            "requests": len(self.records),
            "answered": len(answered),
            "errors": dict(Counter(record.error for record in self.records if record.error)),
            "seconds": self.seconds,
            "requests_per_second": len(answered) / span,
            "prompt_tokens": prompt,
            "cached_share": sum(record.cached_tokens for record in answered) / prompt if prompt else 0.0,
            "output_tokens": output,
            "output_tokens_per_second": output / span,
            "good_share": good / len(self.records) if self.records else 0.0,
            "goodput": good / span,
            **{name: _quantiles(self.times(name)) for name in TIMES},
        }

    def save(self, path: Path) -> None:
        """Writes JSON: the summary to read, and the requests to compute others."""
        kept = {
            "format": FORMAT,
            "target": self.target,
            "started": self.started,
            "settings": dict(self.settings),
            "slo": dict(self.slo),
            "summary": {name: _finite(value) for name, value in self.summary().items()},
            "seconds": self.seconds,
            "requests": [_rounded(asdict(record)) for record in self.records],
        }
        path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Run:
        """Reads what `save` wrote; raises ValueError for anything else."""
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["format"] != FORMAT:
                raise ValueError(f"its format is {kept['format']}, this version reads {FORMAT}")
            known = {each.name for each in fields(Record)}
            records = [Record(**{name: row[name] for name in known}) for row in kept["requests"]]
            return cls(kept["target"], kept["started"], kept["settings"], kept["slo"], kept["seconds"], records)
        except (LookupError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"it is not a result of this command ({type(error).__name__})") from None


def quantile(ordered: Sequence[float], share: float) -> float:
    """Returns the value that `share` of the ordered values do not exceed, interpolated; NaN of none."""
    if not ordered:
        return math.nan
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _quantiles(ordered: Sequence[float]) -> dict[str, float]:
    mean = math.fsum(ordered) / len(ordered) if ordered else math.nan
    found = {name: quantile(ordered, share) for name, share in QUANTILES.items()}
    return {"mean": mean, **found, "max": ordered[-1] if ordered else math.nan}


def _finite(value: Any) -> Any:
    """NaN is not JSON."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    """Microseconds are more than was measured."""
    row["gaps"] = [round(gap, 6) for gap in row["gaps"]]
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in row.items()}
