/** Texts, order and URL parameters of alerts. Pure. */
import type { Backtest, Delivery, Incident, IncidentDetail, Metric, Severity, Tenant } from "./apiTypes";
import { formatCount, formatDuration, formatPlural, formatShare } from "./format";
import { PRESETS } from "./range";
import { href } from "./router";

export const ALERT_TABS = ["incidents", "rules", "channels", "silences"] as const;
export type AlertTab = (typeof ALERT_TABS)[number];

export interface AlertsView {
  show: AlertTab;
  /** Id of the incident shown; null shows the lists. */
  incident: string | null;
}

export function parseAlertsView(params: URLSearchParams): AlertsView {
  return { show: ALERT_TABS.find((name) => name === params.get("show")) ?? "incidents", incident: params.get("incident") };
}

export function incidentHref(tenant: Tenant, id: string): string {
  return href({ name: "alerts" }, tenant, { incident: id });
}

// ---- Texts -------------------------------------------------------------------------------------------

/** Names of metrics, as used on the other pages. */
export const METRIC_NAMES: Record<Metric, string> = {
  BACKLOG: "Depth",
  LATENCY: "Wait time",
  ERROR_RATE: "Failure rate",
  OLDEST_AGE: "Oldest job",
  NO_DATA: "No data",
  SLO: "Burn rate",
};

const CONDITION = /^([A-Z_]+)(?: (avg|p\d+))? ([<>]) (.+) over (.+)$/;
const SLO = /^SLO (.+) % within (.+): burn rate > (.+) over (.+)$/;
const NO_DATA = /^NO_DATA for (.+)$/;

/** Describe a condition: "LATENCY p95 > 250 ms over 5 min" → "Wait time p95 above 250 ms over 5 min". Unknown conditions are returned unchanged. */
export function describeCondition(condition: string): string {
  const silent = NO_DATA.exec(condition);
  if (silent !== null) return `No new data for ${silent[1]}`;
  const slo = SLO.exec(condition);
  if (slo !== null) return `Burn rate above ${slo[3]} over ${slo[4]} (${slo[1]} % start within ${slo[2]})`;
  const [, metric, percentile, sign, limit, window] = CONDITION.exec(condition) ?? [];
  if (metric === undefined) return condition;
  const name = percentile === "avg" ? "Mean wait time" : `${METRIC_NAMES[metric as Metric] ?? metric}${percentile === undefined ? "" : ` ${percentile}`}`;
  return `${name} ${sign === ">" ? "above" : "below"} ${limit} over ${window}`;
}

/** Format a measured value in the unit of its condition. */
export function formatMetricValue(condition: string | null, value: number | null): string {
  if (value === null) return "no data";
  const metric = (condition ?? "").split(" ")[0];
  if (metric === "ERROR_RATE") return formatShare(value);
  if (metric === "SLO") return formatBurnRate(condition ?? "", value);
  if (metric === "LATENCY" || metric === "OLDEST_AGE") return formatDuration(value);
  if (metric === "NO_DATA") return formatDuration(value * 1000);
  return metric === "BACKLOG" ? `${formatCount(value)} ${value === 1 ? "job" : "jobs"}` : formatCount(value);
}

/** Format a burn rate with the share of jobs that started in time, which follows from it. */
function formatBurnRate(condition: string, value: number): string {
  const objective = Number(SLO.exec(condition)?.[1] ?? Number.NaN) / 100;
  const rate = `burn rate ${Number(value.toPrecision(3))}`;
  return Number.isFinite(objective) ? `${rate}, ${formatShare(Math.max(0, 1 - value * (1 - objective)))} in time` : rate;
}

/** Evaluations are usually 30 s apart; after this time without one, a value is no longer called current. */
const CURRENT_MS = 3 * 60_000;

/** Describe the value of an open incident now; null if there is none to show. */
export function describeCurrentValue(incident: Incident, nowMs: number): string | null {
  if (incident.condition === null || incident.resolved_at !== null) return null;
  if (incident.current_at === null) return "current value unknown";
  const value = formatMetricValue(incident.condition, incident.current_value);
  const ageMs = nowMs - Date.parse(incident.current_at);
  return ageMs <= CURRENT_MS ? `now ${value}` : `${value} ${formatDuration(ageMs)} ago, unknown since`;
}

/** Describe the result of a back-test in one or two sentences. */
export function describeBacktest({ fired, queues, every_s, unknown, evaluations, incidents }: Backtest): string {
  if (unknown === evaluations) return "History is unknown for the last 24 hours.";
  const times = fired === 0 ? "not have fired" : `have fired ${fired === 1 ? "once" : `${formatCount(fired)} times`}`;
  const open = incidents.filter((each) => each.resolved_at === null).length;
  const sentences = [
    `Would ${times} in the last 24 hours (${formatPlural(queues, "queue")})${open === 0 ? "" : `; ${open} still open`}.`,
    unknown === 0 ? "" : `History was unknown for ${formatDuration(unknown * every_s * 1000)} of them, in which nothing changes.`,
  ];
  return sentences.filter(Boolean).join(" ");
}

// ---- Incidents ---------------------------------------------------------------------------------------

const SEVERITY_ORDER: readonly Severity[] = ["critical", "warning", "info"];

/** Sort incidents by severity, then unacknowledged ones first, then newest first. */
export function sortBySeverity(incidents: readonly Incident[]): Incident[] {
  return [...incidents].sort(
    (a, b) =>
      SEVERITY_ORDER.indexOf(a.severity) - SEVERITY_ORDER.indexOf(b.severity) ||
      Number(a.state === "acknowledged") - Number(b.state === "acknowledged") ||
      Date.parse(b.fired_at) - Date.parse(a.fired_at),
  );
}

/** Count incidents per severity, most severe first, without zeros. */
export function countBySeverity(incidents: readonly Incident[]): { severity: Severity; count: number }[] {
  return SEVERITY_ORDER.map((severity) => ({ severity, count: incidents.filter((each) => each.severity === severity).length })).filter(({ count }) => count > 0);
}

export function describeOpenCount(count: number, more: boolean): string {
  return count === 0 ? "No open alerts" : `${more ? `${count}+ open alerts` : formatPlural(count, "open alert")}`;
}

const MARGIN_MS = 15 * 60_000;

/** Link to the charts of the queue around the incident; up to now while it is open. Null for incidents without a queue. */
export function chartHref(incident: Incident, nowMs: number): string | null {
  if (incident.queue === null) return null;
  const page = { name: "queue", queue: incident.queue } as const;
  const from = Date.parse(incident.fired_at) - MARGIN_MS;
  const preset = PRESETS.find(({ seconds }) => seconds * 1000 >= nowMs - from) ?? PRESETS.at(-1);
  if (incident.resolved_at === null) return href(page, incident, { range: preset?.id ?? null });
  const until = Math.min(nowMs, Date.parse(incident.resolved_at) + MARGIN_MS);
  return href(page, incident, { start: new Date(from).toISOString(), end: new Date(until).toISOString() });
}

export interface TimelineEntry {
  id: string;
  at: string;
  title: string;
  /** Text beside the title. */
  note: string;
}

const SILENCED = "silenced: no notification sent";

/** Build the timeline of an incident, oldest first. */
export function buildTimeline(incident: IncidentDetail): TimelineEntry[] {
  const entries: TimelineEntry[] = [];
  let fired = false;
  for (const { id, kind, at, value, told } of incident.transitions) {
    const measured = incident.condition === null ? "" : formatMetricValue(incident.condition, value);
    const notes = [measured, ...(told ? [] : [SILENCED])];
    if (kind === "resolved") entries.push({ id, at, title: "Resolved", note: [incident.reason ?? measured, ...(told ? [] : [SILENCED])].filter(Boolean).join(" · ") });
    else if (kind === "firing") entries.push({ id, at, title: fired ? "Notified after the silence ended" : "Fired", note: notes.filter(Boolean).join(" · ") });
    fired ||= kind === "firing";
  }
  if (incident.acknowledged_at !== null) {
    entries.push({ id: "acknowledged", at: incident.acknowledged_at, title: "Acknowledged", note: `by ${incident.acknowledged_by ?? "unknown"}` });
  }
  return entries.sort((a, b) => Date.parse(a.at) - Date.parse(b.at));
}

// ---- Messages ----------------------------------------------------------------------------------------

/** State of a message: "partial" if some recipients refused it, "failed" if it is not retried. */
export type DeliveryState = "delivered" | "partial" | "failed" | "retrying" | "waiting";

export function deliveryState({ delivered_at, given_up_at, attempts, error }: Delivery): DeliveryState {
  if (delivered_at !== null) return error === null ? "delivered" : "partial";
  if (given_up_at !== null) return "failed";
  return attempts === 0 ? "waiting" : "retrying";
}

export function describeDelivery(delivery: Delivery): string {
  const attempts = formatPlural(delivery.attempts, "attempt");
  switch (deliveryState(delivery)) {
    case "delivered":
      return "delivered";
    case "partial":
      return "delivered, but not to every recipient";
    case "failed":
      return `not delivered, given up after ${attempts}`;
    case "retrying":
      return `not delivered after ${attempts}; retrying`;
    case "waiting":
      return "not sent yet";
  }
}
