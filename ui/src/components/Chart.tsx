/** One chart with its legend. The legend shows the values at the crosshair, else the newest ones. */
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { type ChartData, hasValues, lastIndex, valueAt } from "../chartData";
import { formatDayTime, formatExact, formatUtcTime } from "../format";
import { useMedia } from "../polling";
import { customRange, type Range, zoomRange } from "../range";
import { CROSSHAIR, type LineSpec, plotData, plotOptions, type Unit } from "./uplotOptions";

export type { LineSpec, Unit } from "./uplotOptions";

const ZOOM_KEYS: Record<string, number> = { "+": 0.5, "=": 0.5, "-": 2 };

interface Props {
  id: string;
  title: string;
  note: string;
  lines: readonly LineSpec[];
  format: (value: number | null) => string;
  unit: Unit;
  /** Null until the first response. */
  chart: ChartData | null;
  /** The range in words: "last 30 minutes". */
  span: string;
  onZoom: (range: Range) => void;
}

export function Chart(props: Props) {
  const { id, title, note, lines, chart, span } = props;
  const [cursor, setCursor] = useState<number | null>(null);
  const mount = usePlot(props, setCursor);

  const drawn = useMemo(() => (chart === null ? [] : lines.map((line) => chart.lines[line.name])), [chart, lines]);
  const newest = useMemo(() => lastIndex(drawn), [drawn]);
  const points = useMemo(() => countPoints(chart, drawn), [chart, drawn]);
  const reading = cursor ?? newestReading(drawn);
  const at = chart?.times[reading];

  return (
    <section class="card chart" aria-labelledby={`${id}-title`}>
      <header>
        <h2 id={`${id}-title`}>{title}</h2>
        <span class="quiet">{note}</span>
        <time class="quiet moment" title={at === undefined ? "" : formatUtcTime(at)}>
          {at === undefined ? "" : formatDayTime(at)}
        </time>
      </header>
      <Legend lines={lines} chart={chart} index={reading} format={props.format} />
      <div
        class={`plot${chart === null ? " waiting" : ""}`}
        role="group"
        aria-roledescription="chart"
        aria-label={`${title}, ${span}. Use the arrow keys to move the crosshair, plus and minus to zoom.`}
        tabIndex={0}
        data-testid={`chart-${id}`}
        data-points={points}
        data-last-timestamp={newest < 0 ? "" : isoTime(chart?.times[newest])}
        onKeyDown={(event) => {
          if (chart === null || event.ctrlKey || event.metaKey || event.altKey) return;
          const factor = ZOOM_KEYS[event.key];
          if (factor !== undefined) props.onZoom(zoomRange(chart, factor, chart.times[cursor ?? newest] ?? chart.end, Date.now() / 1000));
          else if (!moveCrosshair(event.key, event.shiftKey, chart, cursor ?? newest)) return;
          event.preventDefault();
        }}
        onBlur={clearCrosshair}
      >
        <div ref={mount} class="canvas" aria-hidden="true" />
        {chart !== null && points === 0 && <p class="plot-note">No data in this range yet</p>}
      </div>
    </section>
  );
}

interface LegendProps {
  lines: readonly LineSpec[];
  chart: ChartData | null;
  index: number;
  format: (value: number | null) => string;
}

function Legend({ lines, chart, index, format }: LegendProps) {
  return (
    <dl class="legend">
      {lines.map((line) => {
        const values = chart?.lines[line.name];
        if (line.optional && (values === undefined || !hasValues(values))) return null;
        const value = values === undefined ? null : valueAt(values, index);
        return (
          <div key={line.name}>
            <dt>
              <i style={{ background: `var(${line.colour})` }} aria-hidden="true" />
              {line.label}
            </dt>
            <dd title={formatExact(value)} data-testid={`legend-${line.name}`}>
              {format(value)}
            </dd>
          </div>
        );
      })}
    </dl>
  );
}

/** Manage the uPlot instance: create it again when the colour scheme changes, resize it with its box, pass it new data. */
function usePlot(props: Props, onCursor: (index: number | null) => void) {
  const { lines, format, unit, chart } = props;
  const zoom = useRef(props.onZoom);
  zoom.current = props.onZoom;
  const mount = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const current = useRef<ChartData | null>(chart);
  current.current = chart;
  const dark = useMedia("(prefers-color-scheme: dark)");

  useLayoutEffect(() => {
    const element = mount.current;
    if (element === null) return;
    const onZoom = (start: number, end: number) => zoom.current(customRange(start, end));
    const spec = { lines, axisFormat: format, unit, chart: () => current.current, onCursor, onZoom };
    const size = () => ({ width: Math.max(1, element.clientWidth), height: Math.max(1, element.clientHeight) });
    const { width, height } = size();
    const created = new uPlot(plotOptions(spec, element, width, height), plotData(lines, current.current), element);
    plot.current = created;
    const observer = new ResizeObserver(() => {
      const next = size();
      if (next.width !== created.width || next.height !== created.height) created.setSize(next);
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      created.destroy();
      plot.current = null;
      onCursor(null);
    };
  }, [lines, format, unit, onCursor, dark]);

  useEffect(() => {
    plot.current?.setData(plotData(lines, chart));
  }, [chart, lines]);

  return mount;
}

/** Move the crosshair of all charts. Return false if the key does not move it. */
function moveCrosshair(key: string, far: boolean, chart: ChartData, from: number): boolean {
  const last = chart.times.length - 1;
  const step = far ? 12 : 1;
  const targets: Record<string, number> = { ArrowLeft: from - step, ArrowRight: from + step, Home: 0, End: last };
  if (key === "Escape") {
    clearCrosshair();
    return true;
  }
  const target = targets[key];
  const at = target === undefined ? undefined : chart.times[Math.min(last, Math.max(0, target))];
  if (at === undefined) return false;
  for (const plot of uPlot.sync(CROSSHAIR).plots) plot.setCursor({ left: plot.valToPos(at, "x"), top: 1 });
  return true;
}

function clearCrosshair(): void {
  for (const plot of uPlot.sync(CROSSHAIR).plots) plot.setCursor({ left: -10, top: -10 });
}

/** Index to read without a crosshair: the newest final point, because provisional values are too low. */
function newestReading(drawn: Parameters<typeof lastIndex>[0]): number {
  const settled = lastIndex(drawn, "final");
  return settled < 0 ? lastIndex(drawn) : settled;
}

function countPoints(chart: ChartData | null, drawn: Parameters<typeof lastIndex>[0]): number {
  return chart === null ? 0 : chart.times.filter((_, index) => drawn.some((line) => valueAt(line, index) !== null)).length;
}

function isoTime(epochSeconds: number | undefined): string {
  return epochSeconds === undefined ? "" : new Date(epochSeconds * 1000).toISOString();
}
