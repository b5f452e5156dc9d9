import type { QueueMetrics, QueueState } from "../api";
import { exact, formatCount, formatDuration, formatRate, formatShare, UNKNOWN } from "../format";
import type { Range } from "../location";
import { failureRate, oldestAgeMs, recentThroughput } from "../summary";

interface Props {
  /** The queue as it stands; null when the live list does not hold it. */
  state: QueueState | null;
  serverTime: string | null;
  metrics: QueueMetrics | null;
  range: Range;
  loading: boolean;
}

/** Five numbers. The short form is read, the exact one is in the hover text, the note says what it counts. */
export function Headlines({ state, serverTime, metrics, range, loading }: Props) {
  const age = state === null || serverTime === null ? null : oldestAgeMs(state, serverTime);
  const throughput = metrics === null ? null : recentThroughput(metrics);
  const failures = metrics === null ? null : failureRate(metrics);
  const limit = state?.limit ?? null;
  const unfinished = metrics !== null && metrics.watermark === null;
  return (
    <dl class={`headlines${loading ? " loading" : ""}`} aria-label="Headline numbers">
      <Headline name="depth" label="Depth" value={formatCount(state?.depth ?? null)} title={`${exact(state?.depth ?? null)} jobs`}>
        {state?.paused ? <em class="tag">paused</em> : "jobs waiting"}
      </Headline>
      <Headline
        name="running"
        label="Running"
        value={formatCount(state?.running ?? null)}
        suffix={limit === null ? "" : `/ ${formatCount(limit)}`}
        title={`${exact(state?.running ?? null)} jobs${limit === null ? "" : ` of at most ${exact(limit)}`}`}
      >
        {limit === null ? "no limit" : `${formatShare((state?.running ?? 0) / Math.max(1, limit))} of the limit`}
      </Headline>
      <Headline
        name="oldest"
        label="Oldest age"
        value={formatDuration(age)}
        title={state?.oldest_at ? `since ${state.oldest_at}` : "nothing waits"}
      >
        {state !== null && age === null ? "nothing waits" : "of the waiting jobs"}
      </Headline>
      <Headline
        name="throughput"
        label="Throughput"
        value={formatRate(throughput)}
        suffix={throughput === null ? "" : "/s"}
        title={`${exact(throughput)} completed per second`}
      >
        {unfinished ? "not known yet" : "completed, 1 min"}
      </Headline>
      <Headline
        name="failures"
        label="Failure rate"
        value={formatShare(failures)}
        title={failures === null ? "unknown: nothing was started" : `${exact(failures * 100)} %`}
        warn={failures !== null && failures >= 0.05}
      >
        {unfinished ? "not known yet" : failures === null && !loading ? "nothing started" : `of started, ${range.label}`}
      </Headline>
    </dl>
  );
}

interface HeadlineProps {
  name: string;
  label: string;
  value: string;
  suffix?: string;
  title: string;
  warn?: boolean;
  children: preact.ComponentChildren;
}

function Headline({ name, label, value, suffix = "", title, warn = false, children }: HeadlineProps) {
  return (
    <div class={`headline${warn ? " warn" : ""}${value === UNKNOWN ? " unknown" : ""}`}>
      <dt>{label}</dt>
      <dd>
        <span class="figure" title={title}>
          <span data-testid={`headline-${name}`}>{value}</span>
          {suffix !== "" && <small>{suffix}</small>}
        </span>
        <span class="note">{children}</span>
      </dd>
    </div>
  );
}
