/** Watched streams in order and in words. Pure. */
import { formatAgo, formatDuration, plural } from "./format";
import { queueKey } from "./router";
import type { WatchedStream } from "./apiTypes";

/** Why a group deserves a look, in two words each. */
export function troubles(stream: Pick<WatchedStream, "stale" | "reason" | "stuck">): string[] {
  return [
    ...(stream.stale ? ["not looked at"] : []),
    ...(stream.reason === null ? [] : ["not all is known"]),
    ...(stream.stuck ? [`${stream.stuck} stuck`] : []),
  ];
}

/** Those in trouble first, then the ones with most to do; what is not known may be most of all. */
export function worstFirst(streams: readonly WatchedStream[]): WatchedStream[] {
  const load = (each: WatchedStream) => each.load ?? Number.POSITIVE_INFINITY;
  const rank = (each: WatchedStream) => Number(troubles(each).length > 0);
  return [...streams].sort((a, b) => rank(b) - rank(a) || compare(load(b), load(a)) || queueKey(a).localeCompare(queueKey(b)));
}

function compare(a: number, b: number): number {
  return a === b ? 0 : a < b ? -1 : 1; // two infinities are equal
}

/** Of what is not done, since the oldest entry was added, when this was measured; null: there is none, or nobody knows. */
export function oldestAgeMs(stream: Pick<WatchedStream, "oldest_undelivered_age_ms" | "oldest_pending_age_ms">): number | null {
  const ages = [stream.oldest_undelivered_age_ms, stream.oldest_pending_age_ms].filter((age) => age !== null);
  return ages.length === 0 ? null : Math.max(...ages);
}

/** What stands below a group that is not all well; empty where it is. */
export function whyWords({ stale, age_ms, reason }: Pick<WatchedStream, "stale" | "age_ms" | "reason">): string {
  const old = stale ? `Nobody looks at it any more${age_ms === null ? "" : `; these numbers are from ${formatAgo(age_ms)}`}. Does “headrace streams watch” run?` : "";
  return [old, reason ?? ""].filter((words) => words !== "").join(" ");
}

/** "1 time: 11, 3 times: 1". */
export function deliveriesWords(deliveries: Readonly<Record<string, number>>): string {
  const parts = Object.entries(deliveries).sort(([a], [b]) => Number(a) - Number(b));
  return parts.map(([times, count]) => `${plural(Number(times), "time")}: ${count}`).join(", ");
}

/** The page in a line. */
export function summaryWords(streams: readonly WatchedStream[], total: number): string {
  const shown = total > streams.length ? `${streams.length} of ${plural(total, "group")}` : plural(total, "group");
  const troubled = streams.filter((each) => troubles(each).length > 0).length;
  return troubled === 0 ? shown : `${shown}, ${troubled} to look at`;
}

export function idleWords(idleMs: number): string {
  return `${formatDuration(idleMs)} without a sign`;
}
