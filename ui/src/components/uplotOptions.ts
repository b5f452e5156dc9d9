/** uPlot options for one chart: axes, strokes, shading. Only this module and Chart depend on uPlot. */
import uPlot from "uplot";
import { type ChartData, isolatedIndexes, type LineName } from "../chartData";
import { formatMonthDay, formatTimeOfDay } from "../format";

export interface LineSpec {
  name: LineName;
  label: string;
  /** A custom property of style.css. */
  colour: `--${string}`;
  fill?: boolean;
  /** Line to draw instead of the value itself, for stacked lines and bars. */
  drawn?: LineName;
  /** Fill the area down to this line instead of down to zero. */
  above?: LineName;
  /** Draw bars instead of a line. A zero then draws nothing, which suits failures. */
  bars?: boolean;
  dash?: number[];
  /** Hidden from the legend while it has no value (a queue without a limit). */
  optional?: boolean;
}

export type Unit = "rate" | "count" | "duration" | "bytes";

export interface PlotSpec {
  lines: readonly LineSpec[];
  axisFormat: (value: number) => string;
  /** Unit of the values, which determines the steps of the axis. */
  unit: Unit;
  /** Called at every draw, so that the options can outlive the data. */
  chart: () => ChartData | null;
  onCursor: (index: number | null) => void;
  onZoom: (start: number, end: number) => void;
}

/** Charts under this key share one crosshair. */
export const CROSSHAIR = "headrace";

/** All charts have the same gutters, so that a time has the same x position on each of them. */
const LEFT_GUTTER = 54;
const RIGHT_GUTTER = 14;
const FONT = "11px system-ui, -apple-system, 'Segoe UI', sans-serif";
const DRAG_PX = 6;
const EDGE_PX = 22;

export function plotData(lines: readonly LineSpec[], chart: ChartData | null): uPlot.AlignedData {
  const columns = lines.flatMap(({ name, drawn }) => {
    if (chart === null) return [[], []];
    const line = chart.lines[drawn ?? name];
    return [line.final, line.provisional];
  });
  return [chart?.times ?? [], ...columns];
}

export function plotOptions(spec: PlotSpec, element: HTMLElement, width: number, height: number): uPlot.Options {
  const css = getComputedStyle(element);
  const colour = (property: string) => css.getPropertyValue(property).trim();
  const axis = { font: FONT, stroke: colour("--text-quiet"), ticks: { show: false }, border: { show: false } } as const;

  return {
    width,
    height,
    padding: [8, RIGHT_GUTTER, 0, 0],
    legend: { show: false },
    cursor: {
      // A drag zooms once, not once per chart that shares the crosshair.
      sync: { key: CROSSHAIR, setSeries: false, scales: ["x", null], filters: { pub: (type) => type !== "mousedown" && type !== "mouseup" } },
      drag: { x: true, y: false, setScale: false, dist: DRAG_PX },
      y: false,
      points: { size: 7, width: 2, fill: colour("--surface") },
    },
    scales: {
      x: { time: true, range: () => timeRange(spec.chart()) },
      y: { range: (_plot, _min, max) => [0, niceTop(max, spec.unit)] },
    },
    axes: [
      {
        ...axis,
        size: 28,
        gap: 6,
        space: 76,
        grid: { show: false },
        values: (plot, splits, _axis, _space, step) => splits.map((at) => (fits(plot, at) ? timeLabel(at, step) : "")),
      },
      {
        ...axis,
        size: LEFT_GUTTER,
        gap: 8,
        space: 34,
        grid: { stroke: colour("--grid"), width: 1 },
        ...(STEPS[spec.unit] === undefined ? {} : { incrs: STEPS[spec.unit] }),
        values: (_plot, splits) => splits.map(spec.axisFormat),
      },
    ],
    bands: bands(spec.lines, colour),
    series: [{}, ...spec.lines.flatMap((line) => strokes(line, colour(line.colour)))],
    hooks: {
      drawClear: [(plot) => shadeProvisional(plot, spec.chart(), colour("--provisional"))],
      setCursor: [(plot) => spec.onCursor((plot.cursor.left ?? -1) < 0 ? null : (plot.cursor.idx ?? null))],
      setSelect: [
        (plot) => {
          const { left, width: chosen } = plot.select;
          if (chosen < DRAG_PX) return;
          plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          spec.onZoom(plot.posToVal(left, "x"), plot.posToVal(left + chosen, "x"));
        },
      ],
    },
  };
}

/** Return false for labels so close to the right edge that they would be cut off. */
function fits(plot: uPlot, at: number): boolean {
  return plot.valToPos(at, "x") < plot.bbox.width / devicePixelRatio - EDGE_PX;
}

/** Format an axis label: the day for steps of a day or more and at midnight, else the time of day. */
function timeLabel(at: number, step: number): string {
  const when = new Date(at * 1000);
  const midnight = when.getHours() === 0 && when.getMinutes() === 0;
  return step >= 86_400 || (midnight && step >= 3600) ? formatMonthDay(at) : formatTimeOfDay(at, step < 60);
}

/** Fill between the final strokes of a stacked line and of the line below it. */
function bands(lines: readonly LineSpec[], colour: (property: string) => string): uPlot.Band[] {
  const finalStroke = (index: number) => 1 + 2 * index; // after the times; each line has two strokes
  return lines.flatMap((line, index) => {
    const ground = lines.findIndex((other) => other.name === line.above);
    return ground < 0 ? [] : [{ series: [finalStroke(index), finalStroke(ground)], fill: withAlpha(colour(line.colour), 0.2) } satisfies uPlot.Band];
  });
}

/** Draw a line as two strokes: final values solid, provisional ones thin and dotted. */
function strokes(line: LineSpec, stroke: string): uPlot.Series[] {
  if (line.bars) return bars(line, stroke);
  const points: uPlot.Series.Points = {
    show: true,
    size: 4,
    width: 0,
    fill: stroke,
    filter: (plot, index) => isolatedIndexes(plot.data[index] ?? []),
  };
  const common = { stroke, spanGaps: false, points };
  return [
    {
      ...common,
      label: line.label,
      width: line.fill ? 1.75 : 1.4,
      ...(line.dash ? { dash: line.dash } : {}),
      ...(line.fill ? { fill: (plot: uPlot) => fade(plot, stroke) } : {}),
    },
    { ...common, label: `${line.label}, provisional`, width: 1.25, dash: [1, 3], alpha: 0.8, points: { show: false } },
  ];
}

function bars(line: LineSpec, colour: string): uPlot.Series[] {
  const common = { stroke: colour, fill: colour, width: 0, points: { show: false } };
  const paths = uPlot.paths.bars?.({ size: [0.7, 12, 1.5], align: 0 });
  const shape = paths === undefined ? {} : { paths };
  return [
    { ...common, ...shape, label: line.label },
    { ...common, ...shape, label: `${line.label}, provisional`, alpha: 0.5 },
  ];
}

function fade(plot: uPlot, stroke: string): CanvasGradient {
  const { top, height } = plot.bbox;
  const gradient = plot.ctx.createLinearGradient(0, top, 0, top + Math.max(1, height));
  gradient.addColorStop(0, withAlpha(stroke, 0.28));
  gradient.addColorStop(1, withAlpha(stroke, 0.03));
  return gradient;
}

/** Add an alpha channel to a colour of style.css, which must be #rrggbb. */
function withAlpha(hex: string, alpha: number): string {
  return `${hex}${Math.round(alpha * 255).toString(16).padStart(2, "0")}`;
}

function shadeProvisional(plot: uPlot, chart: ChartData | null, fill: string): void {
  if (chart === null) return;
  // A bucket is drawn at its start, so the last final point is one step before the watermark.
  const from = chart.finalUntil === null ? chart.start : Math.max(chart.start, chart.finalUntil - chart.resolutionS);
  const { left, top, width, height } = plot.bbox;
  const x = Math.max(left, plot.valToPos(from, "x", true));
  if (x >= left + width) return;
  plot.ctx.save();
  plot.ctx.fillStyle = fill;
  plot.ctx.fillRect(x, top, left + width - x, height);
  plot.ctx.restore();
}

function timeRange(chart: ChartData | null): uPlot.Range.MinMax {
  if (chart === null) return [0, 1];
  return [chart.start, Math.max(chart.start + 1, chart.end)];
}

const NICE = [1, 1.5, 2, 3, 4, 5, 6, 8, 10] as const;
const TENFOLD = [1, 10, 100, 1000, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
const WHOLE_STEPS = TENFOLD.flatMap((power) => [power, 2 * power, 5 * power]);
const DURATION_STEPS = [
  ...WHOLE_STEPS.filter((step) => step < 15_000),
  ...[15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200].map((seconds) => seconds * 1000),
  ...[1, 2, 5, 10, 20, 50, 100].map((days) => days * 86_400_000),
];
const BYTE_STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power);
const STEPS: Partial<Record<Unit, number[]>> = { count: WHOLE_STEPS, duration: DURATION_STEPS, bytes: BYTE_STEPS };

/** Return a round axis maximum slightly above the highest value, so that the scale does not change with every refresh. */
export function niceTop(max: number | null, unit: Unit = "rate"): number {
  if (max === null || !Number.isFinite(max) || max <= 0) return 1;
  const size = unit === "bytes" && max >= 1 ? 1024 ** Math.floor(Math.log(max) / Math.log(1024)) : 1;
  const wanted = (max / size) * 1.08;
  const magnitude = 10 ** Math.floor(Math.log10(wanted));
  return (NICE.find((step) => step * magnitude >= wanted) ?? 10) * magnitude * size;
}
