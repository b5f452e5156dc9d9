/** Sparklines as SVG paths. Pure. */
import type { Values } from "./chartData";

export const SPARK_WIDTH = 120;
export const SPARK_HEIGHT = 28;
const BUCKETS = 60;
const MARGIN = 2;

/** Build the path, scaled from zero to the highest value. Each bucket of points is drawn as its maximum, so that no peak is lost. */
export function sparkPath(values: Values): string {
  const buckets = bucketMaxima(values);
  const top = Math.max(...buckets.map((value) => value ?? 0), Number.MIN_VALUE);
  const x = (index: number) => round((index / Math.max(1, buckets.length - 1)) * SPARK_WIDTH);
  const y = (value: number) => round(SPARK_HEIGHT - MARGIN - (value / top) * (SPARK_HEIGHT - 2 * MARGIN));
  let pen = "M";
  return buckets
    .map((value, index) => {
      if (value === null) {
        pen = "M";
        return "";
      }
      const step = `${pen}${x(index)} ${y(value)}`;
      // A dot where both neighbours are unknown: a line needs two points.
      const alone = pen === "M" && (buckets[index + 1] ?? null) === null;
      pen = "L";
      return alone ? `${step}h0.01` : step;
    })
    .join("");
}

function bucketMaxima(values: Values): Values {
  const size = Math.max(1, Math.ceil(values.length / BUCKETS));
  const buckets: Values = [];
  for (let from = 0; from < values.length; from += size) {
    const known = values.slice(from, from + size).filter((value) => value !== null);
    buckets.push(known.length === 0 ? null : Math.max(...known));
  }
  return buckets;
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}
