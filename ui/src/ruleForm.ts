/** A rule as it is typed, and back. What is possible is decided by the server; here only what cannot be read is told. Pure. */
import type { Channel, Metric, Operator, Percentile, Rule, RuleFields, Severity } from "./apiTypes";
import { parseSpan, spanText } from "./durations";

export interface RuleForm {
  name: string;
  metric: Metric;
  /** "": each queue of the environment. */
  queue: string;
  operator: Operator;
  threshold: string;
  percentile: Percentile;
  window: string;
  held: string;
  cooldown: string;
  severity: Severity;
  autoResolve: boolean;
  channels: string[];
}

export type Unit = "jobs" | "span" | "share" | "none";

export const UNITS: Record<Metric, Unit> = { BACKLOG: "jobs", LATENCY: "span", ERROR_RATE: "share", OLDEST_AGE: "span", NO_DATA: "none" };

export function formOf(rule: Rule | null): RuleForm {
  if (rule === null) {
    const spans = { window: "5 min", held: "0 s", cooldown: "15 min" };
    return { name: "", metric: "BACKLOG", queue: "", operator: "GREATER_THAN", threshold: "", percentile: "p95", ...spans, severity: "warning", autoResolve: true, channels: [] };
  }
  const { name, metric, operator, severity, channels } = rule;
  return {
    ...{ name, metric, operator, severity, channels },
    queue: rule.queue ?? "",
    threshold: thresholdText(rule),
    percentile: metric === "LATENCY" ? rule.percentile : "p95",
    window: spanText(rule.window_s * 1000),
    held: spanText(rule.for_s * 1000),
    cooldown: spanText(rule.cooldown_s * 1000),
    autoResolve: rule.auto_resolve,
  };
}

/** A channel may be removed while rules name it. They go on without it. */
export function withoutGone(rule: Rule, channels: readonly Pick<Channel, "id">[]): Rule {
  return { ...rule, channels: rule.channels.filter((id) => channels.some((channel) => channel.id === id)) };
}

function thresholdText({ metric, threshold }: Rule): string {
  const unit = UNITS[metric];
  if (unit === "none") return "";
  if (unit === "share") return `${Number((threshold * 100).toPrecision(12))} %`;
  return unit === "span" && Number.isInteger(threshold) ? spanText(threshold) : unit === "span" ? `${threshold} ms` : String(threshold);
}

export type Read = { fields: Partial<RuleFields>; wrong: null } | { fields: null; wrong: string };

/** The fields of the API, or what cannot be read. */
export function readForm(form: RuleForm): Read {
  const spans = { window_s: seconds(form.window), for_s: seconds(form.held), cooldown_s: seconds(form.cooldown) };
  const threshold = readThreshold(UNITS[form.metric], form.threshold);
  if (threshold === null) return { fields: null, wrong: THRESHOLD_HINTS[UNITS[form.metric]] };
  if (Object.values(spans).some((value) => value === null)) return { fields: null, wrong: "Window, hold and cooldown need a unit, as in 30 s, 5 min or 1 h." };
  const common = { name: form.name.trim(), metric: form.metric, severity: form.severity, auto_resolve: form.autoResolve, channels: form.channels };
  const compared = form.metric === "NO_DATA" ? {} : { operator: form.operator, threshold };
  const queue = form.metric === "NO_DATA" || form.queue.trim() === "" ? null : form.queue;
  const percentile: Percentile = form.metric === "LATENCY" ? form.percentile : "avg";
  return { fields: { ...common, ...compared, queue, percentile, ...(spans as Record<keyof typeof spans, number>) }, wrong: null };
}

const THRESHOLD_HINTS: Record<Unit, string> = {
  jobs: "The threshold is a number of jobs, as in 1000.",
  span: "The threshold is a time with its unit, as in 250 ms or 5 min.",
  share: "The threshold is a share in percent, as in 20 %.",
  none: "",
};

function readThreshold(unit: Unit, text: string): number | null {
  if (unit === "none") return 0;
  if (unit === "span") return parseSpan(text);
  const digits = unit === "share" ? text.replace("%", "") : text;
  if (digits.trim() === "" || !Number.isFinite(Number(digits))) return null;
  return unit === "share" ? Number((Number(digits) / 100).toPrecision(12)) : Number(digits);
}

/** Whole seconds: the server's step. */
function seconds(text: string): number | null {
  const ms = parseSpan(text);
  return ms === null || ms % 1000 !== 0 ? null : ms / 1000;
}
