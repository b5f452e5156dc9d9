/** Events of servers and gaps in history, in words. Pure. */
import { plural } from "./format";
import type { PipelineGap, ServerEvent } from "./apiTypes";

const SERVERS: Record<ServerEvent["server"], string> = { valkey: "Valkey", postgres: "PostgreSQL" };

/** "Valkey: went back". */
export function eventTitle({ server, kind }: ServerEvent): string {
  return `${SERVERS[server]}: ${kind}`;
}

/** How many accepted jobs an event cost. Counters do not see jobs that were accepted just before it. */
export function lossWords({ missing, queues }: ServerEvent): string {
  if (missing === 0) return "no accepted job is missing, as far as counters know";
  return `${plural(missing, "accepted job")} missing in ${plural(queues, "queue")}, as far as counters know`;
}

/** Queues that miss jobs and are not listed one by one. */
export function unlistedQueues({ queues, losses }: ServerEvent): number {
  return Math.max(0, queues - losses.length);
}

/** The API lists the oldest gap first; people look for the newest. */
export function newestGaps(gaps: readonly PipelineGap[], most: number): PipelineGap[] {
  return [...gaps].reverse().slice(0, most);
}
