"""Adapter from runtime metrics to prometheus_client, read at a scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Served
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from headrace.runtime.metrics import DurationHistogram, LabelValues, MetricDeclaration, MetricFamilies


class MetricCollector(Collector):
    def __init__(self, sources: Sequence[Callable[[], MetricFamilies]]) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Served]:
        """Yield each family once, also if several sources have series of it: two spools, for example."""
        found: dict[MetricDeclaration, dict[LabelValues, float | DurationHistogram]] = {}
        for source in self._sources:
            for metric, values in source():
                found.setdefault(metric, {}).update(values)
        for metric, values in found.items():
            yield _build_family(metric, values)


def build_registry(*sources: Callable[[], MetricFamilies]) -> CollectorRegistry:
    """Build a registry of these sources. It reads them once, so that `/metrics?name[]=` can select families."""
    registry = CollectorRegistry(auto_describe=True)
    registry.register(MetricCollector(sources))
    return registry


def build_process_registry(*sources: Callable[[], MetricFamilies]) -> CollectorRegistry:
    """Build a registry of these sources and of the process's memory, CPU time and open files."""
    registry = build_registry(*sources)
    ProcessCollector(registry=registry)
    return registry


def _build_family(metric: MetricDeclaration, values: Mapping[LabelValues, float | DurationHistogram]) -> Served:
    if metric.type == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value in values.items():
            assert isinstance(value, DurationHistogram), metric
            total, counts = value.sum, list(accumulate(list(value.counts)))
            histogram.add_metric(labels, list(zip(_format_bounds(value.bounds), counts, strict=True)), total)
        return histogram
    kind = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in values.items():
        assert not isinstance(value, DurationHistogram), metric
        family.add_metric(labels, value)
    return family


@cache
def _format_bounds(bounds: tuple[float, ...]) -> list[str]:
    return [*map(floatToGoString, bounds), "+Inf"]
