import { formatAgo } from "../format";
import type { Health } from "../refreshStatus";

type Condition = "loading" | "live" | "stale" | "paused" | "failing";

const WORDS: Record<Condition, string> = {
  loading: "loading",
  live: "live",
  stale: "stale",
  paused: "paused",
  failing: "cannot refresh",
};

/** "updated 3 s ago", and a word and a colour for whether that can be trusted as now. */
export function Freshness({ health, now, paused }: { health: Health; now: number; paused: boolean }) {
  const age = health.receivedAt === null ? null : Math.max(0, now - health.receivedAt);
  const condition = judge(age, paused, health);
  return (
    <p class={`freshness ${condition}`} data-testid="updated" data-condition={condition}>
      <span class="dot" aria-hidden="true" />
      {condition !== "live" && condition !== "loading" && <strong>{WORDS[condition]}</strong>}
      <span>{age === null ? (health.error === null ? "loading…" : "") : `updated ${formatAgo(age)}`}</span>
    </p>
  );
}

/** Stale after five refreshes that did not come (at least 10 s). */
function judge(age: number | null, paused: boolean, health: Health): Condition {
  if (health.error !== null) return "failing";
  if (paused) return "paused";
  if (age === null) return "loading";
  return age > Math.max(10_000, health.refreshMs * 5) ? "stale" : "live";
}
