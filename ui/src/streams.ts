/** Order and texts of watched streams. Pure. */
import type { WatchedStream } from "./apiTypes";
import { formatAgo, formatDuration, formatExact, formatPlural } from "./format";
import { queueKey } from "./router";

/** Share of `hard_maxlen` from which a stream counts as nearly full. */
const NEARLY_FULL = 0.8;

/** Return "full" or "nearly full" for a stream that refuses, or will soon refuse, jobs of Headrace's producers; else null.
 * Streams that only other programs use have no limit. */
export function fullness({ counted, total_messages, hard_maxlen }: Pick<WatchedStream, "counted" | "total_messages" | "hard_maxlen">): string | null {
  if (counted !== true || total_messages === null || hard_maxlen === null) return null;
  if (total_messages >= hard_maxlen) return "full";
  return total_messages >= NEARLY_FULL * hard_maxlen ? "nearly full" : null;
}

/** List the problems of a group, as short tags. */
export function groupProblems(stream: Pick<WatchedStream, "stale" | "reason" | "stuck" | "counted" | "total_messages" | "hard_maxlen">): string[] {
  const full = fullness(stream);
  return [
    ...(stream.stale ? ["stale"] : []),
    ...(stream.reason === null ? [] : ["incomplete data"]),
    ...(stream.stuck ? [`${stream.stuck} stuck`] : []),
    ...(full === null ? [] : [full]),
  ];
}

/** Sort groups with problems first, then by load, highest first. An unknown load counts as the highest. */
export function sortByProblem(streams: readonly WatchedStream[]): WatchedStream[] {
  const load = (each: WatchedStream) => each.load ?? Number.POSITIVE_INFINITY;
  const rank = (each: WatchedStream) => Number(groupProblems(each).length > 0);
  return [...streams].sort((a, b) => rank(b) - rank(a) || compare(load(b), load(a)) || queueKey(a).localeCompare(queueKey(b)));
}

function compare(a: number, b: number): number {
  return a === b ? 0 : a < b ? -1 : 1; // subtracting infinities gives NaN
}

/** Return the age of the oldest unfinished entry when measured, in ms; null if there is none or it is unknown. */
export function oldestAgeMs(stream: Pick<WatchedStream, "oldest_undelivered_age_ms" | "oldest_pending_age_ms">): number | null {
  const ages = [stream.oldest_undelivered_age_ms, stream.oldest_pending_age_ms].filter((age) => age !== null);
  return ages.length === 0 ? null : Math.max(...ages);
}

/** Explain why numbers of a group are old or unknown; empty if they are neither. */
export function explainProblems({ stale, age_ms, reason }: Pick<WatchedStream, "stale" | "age_ms" | "reason">): string {
  const staleness = stale ? `No watcher updates this group${age_ms === null ? "" : `; last measured ${formatAgo(age_ms)}`}. Is “headrace streams watch” running?` : "";
  return [staleness, reason ?? ""].filter((words) => words !== "").join(" ");
}

/** Format the length of a stream with its limit: "10,045 of 100,000". The length must be known. */
export function describeLength(totalMessages: number, hardMaxlen: number | null): string {
  return hardMaxlen === null ? formatExact(totalMessages) : `${formatExact(totalMessages)} of ${formatExact(hardMaxlen)}`;
}

/** Format a histogram of delivery counts: "1 time: 11, 3 times: 1". */
export function describeDeliveries(deliveries: Readonly<Record<string, number>>): string {
  const parts = Object.entries(deliveries).sort(([a], [b]) => Number(a) - Number(b));
  return parts.map(([times, count]) => `${formatPlural(Number(times), "time")}: ${count}`).join(", ");
}

/** Summarise the page: "12 groups, 2 need attention". */
export function describeSummary(streams: readonly WatchedStream[], total: number): string {
  const shown = total > streams.length ? `${streams.length} of ${formatPlural(total, "group")}` : formatPlural(total, "group");
  const withProblems = streams.filter((each) => groupProblems(each).length > 0).length;
  return withProblems === 0 ? shown : `${shown}, ${withProblems} ${withProblems === 1 ? "needs" : "need"} attention`;
}

export function formatIdle(idleMs: number): string {
  return `${formatDuration(idleMs)} idle`;
}
