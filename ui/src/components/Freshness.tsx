import { formatAgo } from "../format";
import type { RefreshStatus } from "../refreshStatus";

type Condition = "loading" | "live" | "stale" | "paused" | "failing";

const LABELS: Record<Condition, string> = {
  loading: "loading",
  live: "live",
  stale: "stale",
  paused: "paused",
  failing: "refresh failing",
};

/** Show "updated 3 s ago", with a label and a colour for whether the data is current. */
export function Freshness({ status, now, paused }: { status: RefreshStatus; now: number; paused: boolean }) {
  const age = status.receivedAt === null ? null : Math.max(0, now - status.receivedAt);
  const condition = classify(age, paused, status);
  return (
    <p class={`freshness ${condition}`} data-testid="updated" data-condition={condition}>
      <span class="dot" aria-hidden="true" />
      {condition !== "live" && condition !== "loading" && <strong>{LABELS[condition]}</strong>}
      <span>{age === null ? (status.error === null ? "loading…" : "") : `updated ${formatAgo(age)}`}</span>
    </p>
  );
}

/** Data is stale after five missed refreshes, and at the earliest after 10 s. */
function classify(age: number | null, paused: boolean, status: RefreshStatus): Condition {
  if (status.error !== null) return "failing";
  if (paused) return "paused";
  if (age === null) return "loading";
  return age > Math.max(10_000, status.refreshMs * 5) ? "stale" : "live";
}
