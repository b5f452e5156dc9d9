/** A trend in a few pixels, gaps as gaps. Decoration of a number that is told in words beside it. */
import type { Values } from "../chartData";
import { sparkPath, SPARK_HEIGHT, SPARK_WIDTH } from "../sparkline";

/** Null until there is an answer: its place is kept. */
export function Sparkline({ values, colour }: { values: Values | null | undefined; colour: `--${string}` }) {
  return (
    <svg class="sparkline" viewBox={`0 0 ${SPARK_WIDTH} ${SPARK_HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
      <path
        d={sparkPath(values ?? [])}
        fill="none"
        stroke={`var(${colour})`}
        stroke-width="1.5"
        vector-effect="non-scaling-stroke"
        stroke-linejoin="round"
      />
    </svg>
  );
}
