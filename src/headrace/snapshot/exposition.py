"""Prometheus text exposition: families are rendered once by the refresher and joined at each scrape. Pure.

The text format and OpenMetrics have the same sample lines; they differ in the header of counters and in the page end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prometheus_client.utils import floatToGoString

from headrace.snapshot.families import COUNTER, TOTAL, FamilyDescriptor, SnapshotFamily

OPENMETRICS_END = b"# EOF\n"


@dataclass(frozen=True)
class RenderedFamily:
    """A family in exposition format.

    For an age family: per sample the line prefix and the Unix time from which the age is computed at scrape.
    """

    name: str
    help: str
    type: str
    lines: str = ""
    aged: Sequence[tuple[str, float]] = ()

    def render(self, now_s: float) -> str:
        return self.lines + "".join([f"{begin}{now_s - at if now_s > at else 0.0:.3f}\n" for begin, at in self.aged])

    def render_header(self, openmetrics: bool) -> str:
        # OpenMetrics declares a counter without the suffix of its samples.
        name = self.name.removesuffix(TOTAL) if openmetrics and self.type == COUNTER else self.name
        help_ = _escape_help(self.help, openmetrics)
        return f"# HELP {name} {help_}\n# TYPE {name} {self.type}\n"


def render_family(family: SnapshotFamily) -> RenderedFamily:
    described = family.descriptor
    begins = _render_prefixes(described, (each.labels for each in family.samples))
    if described.is_age:
        aged = tuple((begin, each.value) for begin, each in zip(begins, family.samples, strict=True))
        return RenderedFamily(described.name, described.help, described.type, aged=aged)
    lines = [begin + floatToGoString(each.value) for begin, each in zip(begins, family.samples, strict=True)]
    return RenderedFamily(described.name, described.help, described.type, "".join(f"{line}\n" for line in lines))


def filter_samples(family: RenderedFamily, labels: Iterable[tuple[str, str]]) -> RenderedFamily:
    """Return the family with only the samples that have all these labels."""
    # Quotes inside a value are escaped, so the text from `name="` to the next bare quote is the whole value.
    marks = [f'{name}="{escape_label(value)}"' for name, value in labels]

    def carries(line: str) -> bool:
        return all("{" + mark in line or "," + mark in line for mark in marks)

    lines = "".join(f"{line}\n" for line in family.lines.split("\n") if carries(line))
    aged = tuple((begin, at) for begin, at in family.aged if carries(begin))
    return RenderedFamily(family.name, family.help, family.type, lines, aged)


def render_page(families: Iterable[RenderedFamily], now_s: float, openmetrics: bool) -> str:
    """Render families as a page, omitting those without samples."""
    return "".join(each.render_header(openmetrics) + each.render(now_s) for each in families if each.lines or each.aged)


def _render_prefixes(described: FamilyDescriptor, rows: Iterable[Sequence[str]]) -> list[str]:
    if not described.labels:
        return [f"{described.name} " for _ in rows]
    pattern = described.name + "{" + ",".join(f'{name}="%s"' for name in described.labels) + "} "
    return [pattern % tuple(map(escape_label, labels)) for labels in rows]


def escape_label(value: str) -> str:
    if "\\" not in value and '"' not in value and "\n" not in value:
        return value
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _escape_help(text: str, openmetrics: bool) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if openmetrics else text
