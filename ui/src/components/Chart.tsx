/** One chart with its legend. The legend reads the moment under the crosshair, or else the newest one. */
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { dayTime, exact, utcTime } from "../format";
import { useMedia } from "../polling";
import { between, zoomed, type Range } from "../range";
import { hasValues, lastIndex, valueAt, type Frame } from "../chartData";
import { CROSSHAIR, plotData, plotOptions, type LineSpec, type Unit } from "./uplotOptions";

export type { LineSpec, Unit } from "./uplotOptions";

const ZOOM_KEYS: Record<string, number> = { "+": 0.5, "=": 0.5, "-": 2 };

interface Props {
  id: string;
  title: string;
  note: string;
  lines: readonly LineSpec[];
  format: (value: number | null) => string;
  unit: Unit;
  /** Null until the first answer. */
  frame: Frame | null;
  /** In words, after "of". */
  span: string;
  onZoom: (range: Range) => void;
}

export function Chart(props: Props) {
  const { id, title, note, lines, frame, span } = props;
  const [cursor, setCursor] = useState<number | null>(null);
  const mount = usePlot(props, setCursor);

  const drawn = useMemo(() => (frame === null ? [] : lines.map((line) => frame.lines[line.name])), [frame, lines]);
  const newest = useMemo(() => lastIndex(drawn), [drawn]);
  const points = useMemo(() => countPoints(frame, drawn), [frame, drawn]);
  const reading = cursor ?? newestReading(drawn);
  const at = frame?.times[reading];

  return (
    <section class="card chart" aria-labelledby={`${id}-title`}>
      <header>
        <h2 id={`${id}-title`}>{title}</h2>
        <span class="quiet">{note}</span>
        <time class="quiet moment" title={at === undefined ? "" : utcTime(at)}>
          {at === undefined ? "" : dayTime(at)}
        </time>
      </header>
      <Legend lines={lines} frame={frame} index={reading} format={props.format} />
      <div
        class={`plot${frame === null ? " waiting" : ""}`}
        role="group"
        aria-roledescription="chart"
        aria-label={`${title} of ${span}. Arrow keys move the crosshair, plus and minus zoom.`}
        tabIndex={0}
        data-testid={`chart-${id}`}
        data-points={points}
        data-last-timestamp={newest < 0 ? "" : isoTime(frame?.times[newest])}
        onKeyDown={(event) => {
          if (frame === null || event.ctrlKey || event.metaKey || event.altKey) return;
          const factor = ZOOM_KEYS[event.key];
          if (factor !== undefined) props.onZoom(zoomed(frame, factor, frame.times[cursor ?? newest] ?? frame.end, Date.now() / 1000));
          else if (!moveCrosshair(event.key, event.shiftKey, frame, cursor ?? newest)) return;
          event.preventDefault();
        }}
        onBlur={clearCrosshair}
      >
        <div ref={mount} class="canvas" aria-hidden="true" />
        {frame !== null && points === 0 && <p class="plot-note">Nothing was measured in this range yet</p>}
      </div>
    </section>
  );
}

interface LegendProps {
  lines: readonly LineSpec[];
  frame: Frame | null;
  index: number;
  format: (value: number | null) => string;
}

function Legend({ lines, frame, index, format }: LegendProps) {
  return (
    <dl class="legend">
      {lines.map((line) => {
        const values = frame?.lines[line.name];
        if (line.optional && (values === undefined || !hasValues(values))) return null;
        const value = values === undefined ? null : valueAt(values, index);
        return (
          <div key={line.name}>
            <dt>
              <i style={{ background: `var(${line.colour})` }} aria-hidden="true" />
              {line.label}
            </dt>
            <dd title={exact(value)} data-testid={`legend-${line.name}`}>
              {format(value)}
            </dd>
          </div>
        );
      })}
    </dl>
  );
}

/** Keeps one uPlot alive: made anew when the colours change, resized with its box, given data as it comes. */
function usePlot(props: Props, onCursor: (index: number | null) => void) {
  const { lines, format, unit, frame } = props;
  const zoom = useRef(props.onZoom);
  zoom.current = props.onZoom;
  const mount = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const current = useRef<Frame | null>(frame);
  current.current = frame;
  const dark = useMedia("(prefers-color-scheme: dark)");

  useLayoutEffect(() => {
    const element = mount.current;
    if (element === null) return;
    const onZoom = (start: number, end: number) => zoom.current(between(start, end));
    const spec = { lines, axisFormat: format, unit, frame: () => current.current, onCursor, onZoom };
    const size = () => ({ width: Math.max(1, element.clientWidth), height: Math.max(1, element.clientHeight) });
    const { width, height } = size();
    const made = new uPlot(plotOptions(spec, element, width, height), plotData(lines, current.current), element);
    plot.current = made;
    const observer = new ResizeObserver(() => {
      const next = size();
      if (next.width !== made.width || next.height !== made.height) made.setSize(next);
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
      onCursor(null);
    };
  }, [lines, format, unit, onCursor, dark]);

  useEffect(() => {
    plot.current?.setData(plotData(lines, frame));
  }, [frame, lines]);

  return mount;
}

/** Moves the crosshair of all charts by keyboard; false when the key means something else. */
function moveCrosshair(key: string, far: boolean, frame: Frame, from: number): boolean {
  const last = frame.times.length - 1;
  const step = far ? 12 : 1;
  const targets: Record<string, number> = { ArrowLeft: from - step, ArrowRight: from + step, Home: 0, End: last };
  if (key === "Escape") {
    clearCrosshair();
    return true;
  }
  const target = targets[key];
  const at = target === undefined ? undefined : frame.times[Math.min(last, Math.max(0, target))];
  if (at === undefined) return false;
  for (const plot of uPlot.sync(CROSSHAIR).plots) plot.setCursor({ left: plot.valToPos(at, "x"), top: 1 });
  return true;
}

function clearCrosshair(): void {
  for (const plot of uPlot.sync(CROSSHAIR).plots) plot.setCursor({ left: -10, top: -10 });
}

/** Without a crosshair: the newest final point, since an unfinished one reads too low. */
function newestReading(drawn: Parameters<typeof lastIndex>[0]): number {
  const settled = lastIndex(drawn, "settled");
  return settled < 0 ? lastIndex(drawn) : settled;
}

function countPoints(frame: Frame | null, drawn: Parameters<typeof lastIndex>[0]): number {
  return frame === null ? 0 : frame.times.filter((_, index) => drawn.some((line) => valueAt(line, index) !== null)).length;
}

function isoTime(epochSeconds: number | undefined): string {
  return epochSeconds === undefined ? "" : new Date(epochSeconds * 1000).toISOString();
}
