/** Events of servers and gaps in history, in words. Pure. */
import { formatPlural } from "./format";
import type { PipelineGap, ServerEvent } from "./apiTypes";

const SERVERS: Record<ServerEvent["server"], string> = { valkey: "Valkey", postgres: "PostgreSQL" };

/** "Valkey: went back". */
export function formatEventTitle({ server, kind }: ServerEvent): string {
  return `${SERVERS[server]}: ${kind}`;
}

/** How many accepted jobs an event cost. Counters do not see jobs that were accepted just before it. */
export function describeLoss({ missing, queues }: ServerEvent): string {
  if (missing === 0) return "no accepted jobs missing according to the counters";
  return `${formatPlural(missing, "accepted job")} missing in ${formatPlural(queues, "queue")} according to the counters`;
}

/** Queues that miss jobs and are not listed one by one. */
export function countUnlistedQueues({ queues, losses }: ServerEvent): number {
  return Math.max(0, queues - losses.length);
}

/** The API lists the oldest gap first; people look for the newest. */
export function newestGaps(gaps: readonly PipelineGap[], limit: number): PipelineGap[] {
  return [...gaps].reverse().slice(0, limit);
}
