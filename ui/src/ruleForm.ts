/** Convert rules to form values and back. Reports only values that cannot be parsed; the server validates the rest. Pure. */
import type { Channel, Metric, Operator, Percentile, Rule, RuleFields, Severity } from "./apiTypes";
import { formatExactDuration, parseDuration } from "./durations";

export interface RuleForm {
  name: string;
  metric: Metric;
  /** "" means every queue of the environment. */
  queue: string;
  operator: Operator;
  threshold: string;
  percentile: Percentile;
  /** SLO only. */
  within: string;
  /** SLO only. */
  objective: string;
  window: string;
  holdFor: string;
  cooldown: string;
  severity: Severity;
  autoResolve: boolean;
  channels: string[];
}

export type Unit = "jobs" | "span" | "share" | "rate" | "none";

export const UNITS: Record<Metric, Unit> = { BACKLOG: "jobs", LATENCY: "span", ERROR_RATE: "share", OLDEST_AGE: "span", NO_DATA: "none", SLO: "rate" };

const NEW_SLO = { within: "30 s", objective: "99 %" };

export function toForm(rule: Rule | null): RuleForm {
  if (rule === null) {
    const spans = { window: "5 min", holdFor: "0 s", cooldown: "15 min" };
    return { name: "", metric: "BACKLOG", queue: "", operator: "GREATER_THAN", threshold: "", percentile: "p95", ...NEW_SLO, ...spans, severity: "warning", autoResolve: true, channels: [] };
  }
  const { name, metric, operator, severity, channels } = rule;
  return {
    ...{ name, metric, operator, severity, channels },
    queue: rule.queue ?? "",
    threshold: formatThreshold(rule),
    percentile: metric === "LATENCY" ? rule.percentile : "p95",
    within: rule.within_ms === null ? NEW_SLO.within : formatExactDuration(rule.within_ms),
    objective: rule.objective === null ? NEW_SLO.objective : formatPercent(rule.objective),
    window: formatExactDuration(rule.window_s * 1000),
    holdFor: formatExactDuration(rule.for_s * 1000),
    cooldown: formatExactDuration(rule.cooldown_s * 1000),
    autoResolve: rule.auto_resolve,
  };
}

/** Remove deleted channels from a rule, which may still list them. */
export function withoutDeletedChannels(rule: Rule, channels: readonly Pick<Channel, "id">[]): Rule {
  return { ...rule, channels: rule.channels.filter((id) => channels.some((channel) => channel.id === id)) };
}

function formatThreshold({ metric, threshold }: Rule): string {
  const unit = UNITS[metric];
  if (unit === "none") return "";
  if (unit === "share") return formatPercent(threshold);
  return unit === "span" && Number.isInteger(threshold) ? formatExactDuration(threshold) : unit === "span" ? `${threshold} ms` : String(threshold);
}

function formatPercent(share: number): string {
  return `${Number((share * 100).toPrecision(12))} %`;
}

export type FormResult = { fields: Partial<RuleFields>; error: null } | { fields: null; error: string };

/** Parse the form into API fields, or return an error text. */
export function parseForm(form: RuleForm): FormResult {
  const spans = { window_s: parseSeconds(form.window), for_s: parseSeconds(form.holdFor), cooldown_s: parseSeconds(form.cooldown) };
  const threshold = parseThreshold(UNITS[form.metric], form.threshold);
  if (threshold === null) return { fields: null, error: THRESHOLD_HINTS[UNITS[form.metric]] };
  if (Object.values(spans).some((value) => value === null)) return { fields: null, error: "Window, “Must hold for” and cooldown need a unit, for example 30 s, 5 min or 1 h." };
  const slo = form.metric === "SLO" ? { within_ms: parseDuration(form.within), objective: parseThreshold("share", form.objective) } : NO_SLO;
  if (form.metric === "SLO" && Object.values(slo).some((value) => value === null)) return { fields: null, error: "Enter a wait with a unit, for example 30 s, and an objective in percent, for example 99 %." };
  const common = { name: form.name.trim(), metric: form.metric, severity: form.severity, auto_resolve: form.autoResolve, channels: form.channels };
  const operator: Operator = form.metric === "SLO" ? "GREATER_THAN" : form.operator;
  const compared = form.metric === "NO_DATA" ? {} : { operator, threshold };
  const queue = form.metric === "NO_DATA" || form.queue.trim() === "" ? null : form.queue;
  const percentile: Percentile = form.metric === "LATENCY" ? form.percentile : "avg";
  return { fields: { ...common, ...compared, queue, percentile, ...slo, ...(spans as Record<keyof typeof spans, number>) }, error: null };
}

const NO_SLO = { within_ms: null, objective: null };

const THRESHOLD_HINTS: Record<Unit, string> = {
  jobs: "Enter a number of jobs, for example 1000.",
  span: "Enter a duration with a unit, for example 250 ms or 5 min.",
  share: "Enter a percentage, for example 20 %.",
  rate: "Enter a burn rate, for example 1: fewer jobs than the objective start in time.",
  none: "",
};

function parseThreshold(unit: Unit, text: string): number | null {
  if (unit === "none") return 0;
  if (unit === "span") return parseDuration(text);
  const digits = unit === "share" ? text.replace("%", "") : text;
  if (digits.trim() === "" || !Number.isFinite(Number(digits))) return null;
  return unit === "share" ? Number((Number(digits) / 100).toPrecision(12)) : Number(digits);
}

/** Parse a duration into seconds; null unless it is a whole number, as the API requires. */
function parseSeconds(text: string): number | null {
  const ms = parseDuration(text);
  return ms === null || ms % 1000 !== 0 ? null : ms / 1000;
}
