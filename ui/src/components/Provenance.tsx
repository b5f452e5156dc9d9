import type { QueueMetrics } from "../api";
import { clockTime, formatDuration, utcTime } from "../format";
import { epochSeconds } from "../series";
import { historyLagMs } from "../summary";

/** History this far behind is worth a word: the pipeline normally finishes a bucket within a few seconds. */
const LAG_WORTH_SAYING_MS = 60_000;

/** Where the charts' numbers come from and how far they can be trusted. */
export function Provenance({ metrics }: { metrics: QueueMetrics | null }) {
  if (metrics === null) return <p class="provenance">&nbsp;</p>;
  const lag = historyLagMs(metrics);
  const late = lag === null || lag > LAG_WORTH_SAYING_MS;
  return (
    <p class={`provenance${late ? " late" : ""}`} data-testid="provenance">
      {metrics.watermark === null ? (
        <span>The pipeline has not finished any part of this range yet; everything drawn may still grow.</span>
      ) : (
        <span>
          Final up to <time title={utcTime(epochSeconds(metrics.watermark))}>{clockTime(epochSeconds(metrics.watermark), true)}</time>
          {late && `, ${formatDuration(lag)} behind`}; the shaded part may still grow.
        </span>
      )}
      <span>One point per {metrics.resolution.replace(/(\d+)/, "$1 ")}.</span>
      <span>Times in {Intl.DateTimeFormat().resolvedOptions().timeZone}.</span>
    </p>
  );
}
