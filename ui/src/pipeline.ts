/** Texts for the pipeline process, memory, server events and history gaps. Pure. */
import type { MetricStream, PipelineGap, PipelineProcess, ServerEvent, ValkeyServer } from "./apiTypes";
import { formatDuration, formatPlural } from "./format";

export type Tone = "plain" | "warn" | "bad";

const REPORT_PROBLEMS: Record<PipelineProcess["condition"], string> = {
  fresh: "",
  stale: "The pipeline has stopped, or cannot reach Valkey. These are its last values.",
  missing: "No pipeline has reported in the last week. Start one with “headrace pipeline”.",
  unreadable: "The report is of another release.",
};

/** Explain why the state of the pipeline process is not current; empty if it is. */
export function describeReportProblem(process: PipelineProcess): string {
  return REPORT_PROBLEMS[process.condition];
}

/** Name the state of sending to ClickHouse: the circuit breaker precedes the exporter's health. */
export function describeExport(process: PipelineProcess | null): { text: string; tone: Tone } | null {
  const sending = process?.export ?? null;
  if (sending === null || sending.breaker === null) return null;
  if (sending.breaker === "open") return { text: "waiting", tone: "bad" };
  if (sending.breaker === "half_open") return { text: "probing", tone: "warn" };
  return sending.healthy === false ? { text: "failing", tone: "bad" } : { text: "sending", tone: "plain" };
}

/** Return the share of the spool that is in use: the larger of its records and its bytes. Null: unknown. */
export function spoolShare(process: PipelineProcess | null): number | null {
  const spool = process?.spool ?? null;
  if (spool === null || spool.records === null || spool.bytes === null || !spool.max_records || !spool.max_bytes) return null;
  return Math.max(spool.records / spool.max_records, spool.bytes / spool.max_bytes);
}

/** Add up a value of all streams; null if one is unknown. */
export function sumStreams(streams: readonly MetricStream[] | null, read: (stream: MetricStream) => number | null): number | null {
  const values = streams?.map(read) ?? [null];
  return values.reduce((sum, value) => (sum === null || value === null ? null : sum + value), 0);
}

const FULL_SOON_S = 3600;
const FORECAST_UNKNOWN = { "no limit": "no limit", "short window": "measuring", "no growth": "not growing" } as const;

/** Describe when a server reaches its first limit, and what happens then. */
export function describeForecast(server: ValkeyServer): { text: string; note: string; tone: Tone } {
  const refuses = server.limit === "maxmemory";
  const note = server.limit === null ? "" : refuses ? "maxmemory: then new jobs are refused" : "Headrace’s cap: then new jobs wait in PostgreSQL";
  if (server.full_in_s === null) return { text: FORECAST_UNKNOWN[server.unknown ?? "no growth"], note, tone: "plain" };
  const tone = server.full_in_s > FULL_SOON_S ? "plain" : refuses ? "bad" : "warn";
  return { text: server.full_in_s === 0 ? "now" : `in ${formatDuration(server.full_in_s * 1000)}`, note, tone };
}

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
