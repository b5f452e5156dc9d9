/** Chart definitions: titles, lines, colours and units. Chart draws them. */
import type { ChartData } from "../chartData";
import { formatBytes, formatCount, formatDuration, formatRate, UNKNOWN } from "../format";
import { describeRange, type Range } from "../range";
import { Chart, type LineSpec, type Unit } from "./Chart";

interface Props {
  chart: ChartData | null;
  range: Range;
  onZoom: (range: Range) => void;
}

interface ChartSpec {
  id: string;
  title: string;
  note: string;
  lines: readonly LineSpec[];
  format: (value: number | null) => string;
  unit: Unit;
}

const perSecond = (value: number | null) => (value === null ? UNKNOWN : `${formatRate(value)}/s`);

const THROUGHPUT: ChartSpec = {
  id: "throughput",
  title: "Throughput",
  note: "jobs per second",
  format: perSecond,
  unit: "rate",
  lines: [
    { name: "completed", label: "Completed", colour: "--series-out", fill: true },
    { name: "started", label: "Started", colour: "--series-started", dash: [4, 3] },
    { name: "enqueued", label: "Enqueued", colour: "--series-in" },
  ],
};

/** Cold jobs wait behind warm ones, so their area is stacked on top. */
const DEPTH_BY_TIER: ChartSpec = {
  id: "depth",
  title: "Depth by tier",
  note: "waiting jobs",
  format: formatCount,
  unit: "count",
  lines: [
    { name: "warm", label: "Warm", colour: "--series-depth", fill: true },
    { name: "cold", label: "Cold", colour: "--series-cold", drawn: "depth", above: "warm" },
    { name: "peak", label: "Peak", colour: "--series-limit", dash: [2, 3] },
  ],
};

const DEPTH: ChartSpec = {
  id: "depth",
  title: "Depth",
  note: "waiting jobs",
  format: formatCount,
  unit: "count",
  lines: [
    { name: "depth", label: "Depth", colour: "--series-depth", fill: true },
    { name: "peak", label: "Peak", colour: "--series-limit", dash: [2, 3] },
  ],
};

const OLDEST: ChartSpec = {
  id: "oldest",
  title: "Oldest waiting job",
  note: "highest age",
  format: formatDuration,
  unit: "duration",
  lines: [{ name: "age", label: "Age", colour: "--series-p95", fill: true }],
};

const WAIT: ChartSpec = {
  id: "wait",
  title: "Wait time",
  note: "from eligible to started",
  format: formatDuration,
  unit: "duration",
  lines: [
    { name: "waitP50", label: "p50", colour: "--series-p50", fill: true },
    { name: "waitP95", label: "p95", colour: "--series-p95" },
    { name: "waitP99", label: "p99", colour: "--series-p99" },
  ],
};

const RUN: ChartSpec = {
  id: "run",
  title: "Run time",
  note: "measured by workers",
  format: formatDuration,
  unit: "duration",
  lines: [
    { name: "runP50", label: "p50", colour: "--series-p50", fill: true },
    { name: "runP95", label: "p95", colour: "--series-p95" },
    { name: "runP99", label: "p99", colour: "--series-p99" },
  ],
};

const CONCURRENCY: ChartSpec = {
  id: "concurrency",
  title: "Concurrency",
  note: "peak running jobs",
  format: formatCount,
  unit: "count",
  lines: [
    { name: "running", label: "Running", colour: "--series-running", fill: true },
    { name: "limit", label: "Limit", colour: "--series-bad", dash: [5, 4], optional: true },
  ],
};

/** Stacked bars, drawn from back to front: each starts where the next one ends. */
const FAILURES: ChartSpec = {
  id: "failures",
  title: "Failures and expiries",
  note: "jobs per second",
  format: perSecond,
  unit: "rate",
  lines: [
    { name: "expired", label: "Expired", colour: "--series-limit", drawn: "expiredTop", bars: true },
    { name: "retried", label: "Retried", colour: "--series-running", drawn: "retriedTop", bars: true },
    { name: "buried", label: "Buried", colour: "--series-bad", bars: true },
  ],
};

const BYTES: ChartSpec = {
  id: "bytes",
  title: "Payload size",
  note: "warm and cold tier",
  format: formatBytes,
  unit: "bytes",
  lines: [{ name: "bytes", label: "Peak", colour: "--series-in", fill: true }],
};

export const QUEUE_CHARTS = [THROUGHPUT, DEPTH_BY_TIER, OLDEST, WAIT, RUN, CONCURRENCY, FAILURES, BYTES] as const;
export const ENVIRONMENT_CHARTS = [THROUGHPUT, DEPTH, OLDEST] as const;

export function Charts({ specs, chart, range, onZoom }: Props & { specs: readonly ChartSpec[] }) {
  return (
    <div class="charts">
      {specs.map((spec) => (
        <Chart key={spec.id} {...spec} chart={chart} span={describeRange(range)} onZoom={onZoom} />
      ))}
    </div>
  );
}
