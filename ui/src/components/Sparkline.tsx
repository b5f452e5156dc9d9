/** Small trend line without axes; gaps stay gaps. Decorative: the number is shown as text beside it. */
import type { Values } from "../chartData";
import { SPARK_HEIGHT, SPARK_WIDTH, sparkPath } from "../sparkline";

/** Without values the box is empty but keeps its size. */
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
