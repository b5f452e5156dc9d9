/** The charts of the queue page: which lines, in which colours, on which scales. Drawing is Chart's business. */
import { formatCount, formatRate } from "../format";
import type { Range } from "../location";
import type { Frame } from "../series";
import { Chart, type LineSpec } from "./Chart";

interface Props {
  frame: Frame | null;
  range: Range;
}

const perSecond = (value: number | null) => (value === null ? formatRate(value) : `${formatRate(value)}/s`);

const THROUGHPUT: readonly LineSpec[] = [
  { name: "enqueued", label: "Enqueued", colour: "--series-in", scale: "left", format: perSecond },
  { name: "completed", label: "Completed", colour: "--series-out", scale: "left", fill: true, format: perSecond },
  { name: "failed", label: "Failed", colour: "--series-bad", scale: "left", bars: true, format: perSecond },
];

const DEPTH: readonly LineSpec[] = [
  { name: "depth", label: "Depth", colour: "--series-depth", scale: "left", fill: true, format: formatCount },
  { name: "running", label: "Running", colour: "--series-running", scale: "right", format: formatCount },
  { name: "limit", label: "Limit", colour: "--series-limit", scale: "right", dash: [2, 4], optional: true, format: formatCount },
];

export function ThroughputChart(props: Props) {
  return <Chart {...props} id="throughput" title="Throughput" note="jobs per second" lines={THROUGHPUT} leftFormat={formatRate} />;
}

export function DepthChart(props: Props) {
  return (
    <Chart
      {...props}
      id="depth"
      title="Depth"
      note="running: right axis"
      lines={DEPTH}
      leftFormat={formatCount}
      rightFormat={formatCount}
    />
  );
}
