"""The queries of this package; queries.sql describes them and the fragments that they include by name, as `{name}`."""

from __future__ import annotations

import re
from functools import cache

from headrace.model.query_file import load_queries

QUERIES = load_queries("headrace.warehouse")


@cache
def render_query(name: str, **parts: str) -> str:
    """Return a query in which each `{part}` is replaced by the text of `parts`, else by the fragment of that name."""
    texts = {**QUERIES, **parts}
    return re.sub(r"\{(\w+)\}", lambda part: texts[part[1]], QUERIES[name])


def make_points_parts(*, histograms: bool, rewritten: bool) -> dict[str, str]:
    """Return the parts of a query of points. Histograms are read only for percentiles; `rewritten`: a backfill
    wrote some of the hours again."""
    return {
        "percentiles": render_query("duration_percentiles") if histograms else "",
        "histograms": render_query("duration_histograms") if histograms else "",
        "histogram_sums": "wait, run" if histograms else "map(), map()",
        "generation": select_generation(rewritten),
    }


def make_buckets_parts(*, histograms: bool, rewritten: bool) -> dict[str, str]:
    """Return the parts of a query of the stored rows of buckets, like `make_points_parts`."""
    columns = render_query("histogram_columns") if histograms else ""
    return {"histograms": columns, "generation": select_generation(rewritten)}


def select_generation(rewritten: bool) -> str:
    """Return the condition for the rows that count."""
    return render_query("current_generation") if rewritten else render_query("streamed_generation")
