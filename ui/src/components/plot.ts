/** uPlot's options for one chart: axes, strokes, shading. The only module, with Chart, that knows uPlot. */
import uPlot from "uplot";
import { clockTime } from "../format";
import { isolatedIndexes, type Frame, type LineName } from "../series";

export type ScaleName = "left" | "right";

export interface LineSpec {
  name: LineName;
  label: string;
  /** A custom property of style.css. */
  colour: `--${string}`;
  scale: ScaleName;
  fill?: boolean;
  /** Bars from the ground instead of a line: zero is then nothing, for what should not happen at all. */
  bars?: boolean;
  dash?: number[];
  /** Hidden from the legend while it has no value (a queue without a limit). */
  optional?: boolean;
  format: (value: number | null) => string;
}

export interface PlotSpec {
  lines: readonly LineSpec[];
  leftFormat: (value: number) => string;
  rightFormat?: (value: number) => string;
  /** Read at every draw, so that the options outlive the data. */
  frame: () => Frame | null;
  onCursor: (index: number | null) => void;
}

/** Charts under this key share one crosshair. */
export const CROSSHAIR = "queue-page";

/** The same gutters on every chart, so that the same moment stands at the same place on all of them. */
const LEFT_GUTTER = 46;
const RIGHT_GUTTER = 38;
const FONT = "11px system-ui, -apple-system, 'Segoe UI', sans-serif";

export function plotData(lines: readonly LineSpec[], frame: Frame | null): uPlot.AlignedData {
  const columns = lines.flatMap(({ name }) => (frame === null ? [[], []] : [frame.lines[name].settled, frame.lines[name].unfinished]));
  return [frame?.times ?? [], ...columns];
}

export function plotOptions(spec: PlotSpec, element: HTMLElement, width: number, height: number): uPlot.Options {
  const css = getComputedStyle(element);
  const colour = (property: string) => css.getPropertyValue(property).trim();
  const hasRight = spec.rightFormat !== undefined;
  const axis = { font: FONT, stroke: colour("--text-quiet"), ticks: { show: false }, border: { show: false } } as const;
  const grid = { stroke: colour("--grid"), width: 1 };
  const right = spec.lines.find((line) => line.scale === "right");

  return {
    width,
    height,
    padding: [8, hasRight ? 0 : RIGHT_GUTTER, 0, 0],
    legend: { show: false },
    cursor: {
      sync: { key: CROSSHAIR, setSeries: false, scales: ["x", null] },
      drag: { x: false, y: false, setScale: false },
      y: false,
      points: { size: 7, width: 2, fill: colour("--surface") },
    },
    scales: {
      x: { time: true, range: () => timeRange(spec.frame()) },
      left: { range: (_plot, _min, max) => [0, niceTop(max)] },
      right: { range: (_plot, _min, max) => [0, niceTop(max)] },
    },
    axes: [
      {
        ...axis,
        size: 28,
        gap: 6,
        space: 76,
        grid: { show: false },
        values: (_plot, splits, _axis, _space, step) => splits.map((at) => clockTime(at, step < 60)),
      },
      { ...axis, scale: "left", size: LEFT_GUTTER, gap: 8, space: 34, grid, values: (_plot, splits) => splits.map(spec.leftFormat) },
      ...(spec.rightFormat === undefined || right === undefined
        ? []
        : [
            {
              ...axis,
              scale: "right",
              side: 1 as const,
              size: RIGHT_GUTTER,
              gap: 8,
              space: 34,
              stroke: colour(right.colour),
              grid: { show: false },
              incrs: WHOLE_STEPS,
              values: (_plot: uPlot, splits: number[]) => splits.map(spec.rightFormat as (value: number) => string),
            },
          ]),
    ],
    series: [{}, ...spec.lines.flatMap((line) => strokes(line, colour(line.colour)))],
    hooks: {
      drawClear: [(plot) => shadeUnfinished(plot, spec.frame(), colour("--unfinished"))],
      setCursor: [(plot) => spec.onCursor((plot.cursor.left ?? -1) < 0 ? null : (plot.cursor.idx ?? null))],
    },
  };
}

/** A line is two strokes: final values solid, unfinished ones thin and dotted. */
function strokes(line: LineSpec, stroke: string): uPlot.Series[] {
  if (line.bars) return bars(line, stroke);
  const points: uPlot.Series.Points = {
    show: true,
    size: 4,
    width: 0,
    fill: stroke,
    filter: (plot, index) => isolatedIndexes(plot.data[index] ?? []),
  };
  const common = { scale: line.scale, stroke, spanGaps: false, points };
  return [
    {
      ...common,
      label: line.label,
      width: line.fill ? 1.75 : 1.4,
      ...(line.dash ? { dash: line.dash } : {}),
      ...(line.fill ? { fill: (plot: uPlot) => fade(plot, stroke) } : {}),
    },
    { ...common, label: `${line.label}, unfinished`, width: 1.25, dash: [1, 3], alpha: 0.8, points: { show: false } },
  ];
}

function bars(line: LineSpec, colour: string): uPlot.Series[] {
  const common = { scale: line.scale, stroke: colour, fill: colour, width: 0, points: { show: false } };
  const paths = uPlot.paths.bars?.({ size: [0.7, 12, 1], align: 0 });
  const shape = paths === undefined ? {} : { paths };
  return [
    { ...common, ...shape, label: line.label },
    { ...common, ...shape, label: `${line.label}, unfinished`, alpha: 0.5 },
  ];
}

function fade(plot: uPlot, stroke: string): CanvasGradient {
  const { top, height } = plot.bbox;
  const gradient = plot.ctx.createLinearGradient(0, top, 0, top + Math.max(1, height));
  gradient.addColorStop(0, withAlpha(stroke, 0.28));
  gradient.addColorStop(1, withAlpha(stroke, 0.03));
  return gradient;
}

/** The colours of style.css are #rrggbb. */
function withAlpha(hex: string, alpha: number): string {
  return `${hex}${Math.round(alpha * 255).toString(16).padStart(2, "0")}`;
}

function shadeUnfinished(plot: uPlot, frame: Frame | null, fill: string): void {
  if (frame === null) return;
  // A bucket is drawn at its start, so the last final point stands one step before the watermark.
  const from = frame.settledUntil === null ? frame.start : Math.max(frame.start, frame.settledUntil - frame.resolutionS);
  const { left, top, width, height } = plot.bbox;
  const x = Math.max(left, plot.valToPos(from, "x", true));
  if (x >= left + width) return;
  plot.ctx.save();
  plot.ctx.fillStyle = fill;
  plot.ctx.fillRect(x, top, left + width - x, height);
  plot.ctx.restore();
}

function timeRange(frame: Frame | null): uPlot.Range.MinMax {
  if (frame === null) return [0, 1];
  return [frame.start, Math.max(frame.start + 1, frame.end)];
}

const NICE = [1, 1.5, 2, 3, 4, 5, 6, 8, 10] as const;
const WHOLE_STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 1_000_000];

/** A round top a little above the highest value, so that the scale does not twitch with every refresh. */
export function niceTop(max: number | null): number {
  if (max === null || !Number.isFinite(max) || max <= 0) return 1;
  const wanted = max * 1.08;
  const magnitude = 10 ** Math.floor(Math.log10(wanted));
  return (NICE.find((step) => step * magnitude >= wanted) ?? 10) * magnitude;
}
