import { formatAgo } from "../format";

interface Props {
  receivedAt: number | null;
  now: number;
  paused: boolean;
  failing: boolean;
  refreshMs: number;
}

type Condition = "loading" | "live" | "stale" | "paused" | "failing";

const WORDS: Record<Condition, string> = {
  loading: "loading",
  live: "live",
  stale: "stale",
  paused: "paused",
  failing: "cannot refresh",
};

/** "updated 3 s ago", and a word and a colour for whether that can be trusted as now. */
export function Freshness({ receivedAt, now, paused, failing, refreshMs }: Props) {
  const age = receivedAt === null ? null : Math.max(0, now - receivedAt);
  const condition = judge(age, paused, failing, refreshMs);
  return (
    <p class={`freshness ${condition}`} data-testid="updated" data-condition={condition}>
      <span class="dot" aria-hidden="true" />
      {condition !== "live" && condition !== "loading" && <strong>{WORDS[condition]}</strong>}
      <span>{age === null ? (failing ? "" : "loading…") : `updated ${formatAgo(age)}`}</span>
    </p>
  );
}

/** Stale after five refreshes that did not come (at least 10 s). */
function judge(age: number | null, paused: boolean, failing: boolean, refreshMs: number): Condition {
  if (failing) return "failing";
  if (paused) return "paused";
  if (age === null) return "loading";
  return age > Math.max(10_000, refreshMs * 5) ? "stale" : "live";
}
