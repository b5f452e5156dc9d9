/** Watched streams in order and in words. Pure. */
import { formatAgo, formatDuration, formatPlural } from "./format";
import { queueKey } from "./router";
import type { WatchedStream } from "./apiTypes";

/** Why a group deserves a look, in two words each. */
export function groupProblems(stream: Pick<WatchedStream, "stale" | "reason" | "stuck">): string[] {
  return [
    ...(stream.stale ? ["stale"] : []),
    ...(stream.reason === null ? [] : ["incomplete data"]),
    ...(stream.stuck ? [`${stream.stuck} stuck`] : []),
  ];
}

/** Those in trouble first, then the ones with most to do; what is not known may be most of all. */
export function sortByProblem(streams: readonly WatchedStream[]): WatchedStream[] {
  const load = (each: WatchedStream) => each.load ?? Number.POSITIVE_INFINITY;
  const rank = (each: WatchedStream) => Number(groupProblems(each).length > 0);
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
export function explainProblems({ stale, age_ms, reason }: Pick<WatchedStream, "stale" | "age_ms" | "reason">): string {
  const staleness = stale ? `No watcher updates this group${age_ms === null ? "" : `; last measured ${formatAgo(age_ms)}`}. Is “headrace streams watch” running?` : "";
  return [staleness, reason ?? ""].filter((words) => words !== "").join(" ");
}

/** "1 time: 11, 3 times: 1". */
export function describeDeliveries(deliveries: Readonly<Record<string, number>>): string {
  const parts = Object.entries(deliveries).sort(([a], [b]) => Number(a) - Number(b));
  return parts.map(([times, count]) => `${formatPlural(Number(times), "time")}: ${count}`).join(", ");
}

/** The page in a line. */
export function describeSummary(streams: readonly WatchedStream[], total: number): string {
  const shown = total > streams.length ? `${streams.length} of ${formatPlural(total, "group")}` : formatPlural(total, "group");
  const withProblems = streams.filter((each) => groupProblems(each).length > 0).length;
  return withProblems === 0 ? shown : `${shown}, ${withProblems} ${withProblems === 1 ? "needs" : "need"} attention`;
}

export function formatIdle(idleMs: number): string {
  return `${formatDuration(idleMs)} idle`;
}
