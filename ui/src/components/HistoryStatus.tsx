import type { History } from "../apiTypes";
import { formatDuration } from "../format";
import { historyLagMs } from "../totals";
import { Time } from "./Time";

/** Lag from which a warning is shown. The pipeline normally finishes a bucket within a few seconds. */
const LAG_WARNING_MS = 60_000;

/** Line below the charts: up to when history is final, which tier was read, how complete it is. */
export function HistoryStatus({ history }: { history: History | null }) {
  if (history === null) return <p class="history-status">&nbsp;</p>;
  const lag = historyLagMs(history);
  const late = lag === null || lag > LAG_WARNING_MS;
  return (
    <p class={`history-status${late ? " late" : ""}`} data-testid="provenance">
      {history.watermark === null ? (
        <span>No part of this range is final yet; all values may still increase.</span>
      ) : (
        <span>
          Final up to <Time iso={history.watermark} />
          {late && lag !== null && `, ${formatDuration(lag)} behind`}; values in the shaded area may still increase.
        </span>
      )}
      <span title={history.source.reason}>
        One point per {formatResolution(history.resolution)}, from {formatResolution(history.source.tier)} buckets.
      </span>
      <Completeness completeness={history.completeness} />
      <span>Times in {Intl.DateTimeFormat().resolvedOptions().timeZone}.</span>
    </p>
  );
}

function Completeness({ completeness: { pct, missing } }: { completeness: History["completeness"] }) {
  const parts = Object.entries(missing).map(([name, count]) => `${count} ${name}`);
  const title = parts.length === 0 ? "Share of the operations counted by the queues that history contains" : `Missing from history: ${parts.join(", ")}`;
  const whole = pct === 100;
  return (
    <span class={whole || pct === null ? "" : "incomplete"} title={title} data-testid="completeness">
      {pct === null ? "Completeness unknown." : `${pct} % complete.`}
    </span>
  );
}

function formatResolution(resolution: string): string {
  return resolution.replace(/(\d+)/, "$1 ").replace("m", "min");
}
