/** Texts for server events and history gaps. Pure. */
import type { PipelineGap, ServerEvent } from "./apiTypes";
import { formatPlural } from "./format";

const SERVERS: Record<ServerEvent["server"], string> = { valkey: "Valkey", postgres: "PostgreSQL" };

/** Format the title of a server event: "Valkey: went back". */
export function formatEventTitle({ server, kind }: ServerEvent): string {
  return `${SERVERS[server]}: ${kind}`;
}

/** Describe how many accepted jobs are missing. Counters do not include jobs accepted just before the event. */
export function describeLoss({ missing, queues }: ServerEvent): string {
  if (missing === 0) return "no accepted jobs missing according to the counters";
  return `${formatPlural(missing, "accepted job")} missing in ${formatPlural(queues, "queue")} according to the counters`;
}

/** Count the queues with missing jobs that are not in `losses`. */
export function countUnlistedQueues({ queues, losses }: ServerEvent): number {
  return Math.max(0, queues - losses.length);
}

/** Return the newest gaps, newest first; the API lists the oldest first. */
export function newestGaps(gaps: readonly PipelineGap[], limit: number): PipelineGap[] {
  return [...gaps].reverse().slice(0, limit);
}
