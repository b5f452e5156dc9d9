/** Texts for worker types and decisions, and paths of the worker chart. Pure. */
import type { Decision, WorkerType } from "./apiTypes";

/** Describe the scope of a worker type: "all organisations", "acme / shop / prod". */
export function describeScope({ org, project, env }: Pick<WorkerType, "org" | "project" | "env">): string {
  const parts = [org, project, env].filter((part) => part !== null);
  return parts.length === 0 ? "all organisations" : parts.join(" / ");
}

/** Describe the queues or the stream that a worker type serves. */
export function describeWork(type: Pick<WorkerType, "queues" | "all_queues" | "stream" | "group">): string {
  if (type.stream !== null) return `stream ${type.stream}, group ${type.group ?? ""}`;
  return type.all_queues ? "all queues" : type.queues.join(", ");
}

/** State of a queue or consumer group when a decision was made; null means unknown. */
export interface Source {
  name: string;
  depth: number | null;
  running: number | null;
  arrivalsPerS: number | null;
  serviceMs: number | null;
  ageMs: number | null;
  paused: boolean;
  unknown: string;
}

export function readSources({ inputs }: Pick<Decision, "inputs">): Source[] {
  const sources = Array.isArray(inputs["sources"]) ? (inputs["sources"] as unknown[]) : [];
  return sources
    .filter((each): each is Record<string, unknown> => typeof each === "object" && each !== null)
    .map((each) => ({
      name: String(each["name"] ?? ""),
      depth: toNumber(each["depth"]),
      running: toNumber(each["running"]),
      arrivalsPerS: toNumber(each["arrivals_per_s"]),
      serviceMs: toMilliseconds(each["service_s"]),
      ageMs: toMilliseconds(each["age_s"]),
      paused: each["paused"] === true,
      unknown: typeof each["unknown"] === "string" ? each["unknown"] : "",
    }));
}

/** Return the slots that the load needed and those that limits and pauses allowed; null if they were not estimated. */
export function readDemand({ inputs }: Pick<Decision, "inputs">): { slots: number; allowed: number } | null {
  const [slots, allowed] = [toNumber(inputs["slots"]), toNumber(inputs["allowed"])];
  return slots === null || allowed === null ? null : { slots, allowed };
}

/** Return the number of running workers when the decision was made; null if unknown. */
export function readWorkerCount({ inputs }: Pick<Decision, "inputs">): number | null {
  return toNumber(inputs["workers"]);
}

function toNumber(value: unknown): number | null {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

function toMilliseconds(value: unknown): number | null {
  const seconds = toNumber(value);
  return seconds === null ? null : seconds * 1000;
}

// ---- The chart ---------------------------------------------------------------------------------------

export const STEPS_WIDTH = 600;
export const STEPS_HEIGHT = 120;

export interface Steps {
  /** SVG paths in a box of STEPS_WIDTH by STEPS_HEIGHT. */
  wanted: string;
  workers: string;
  top: number;
  /** ISO times. */
  from: string;
  until: string;
}

/** Build step lines: a number holds until the next decision, an unknown one is a gap. Null with fewer than two decisions. */
export function toSteps(newestFirst: readonly Decision[]): Steps | null {
  const decisions = [...newestFirst].reverse();
  const [first, last] = [decisions[0], decisions.at(-1)];
  if (first === undefined || last === undefined || first === last) return null;
  const [start, end] = [Date.parse(first.decided_at), Date.parse(last.decided_at)];
  const top = Math.max(1, ...decisions.flatMap((each) => [each.wanted, readWorkerCount(each) ?? 0]));
  const x = (each: Decision) => round(((Date.parse(each.decided_at) - start) / Math.max(1, end - start)) * STEPS_WIDTH);
  const y = (value: number) => round(STEPS_HEIGHT - (value / top) * STEPS_HEIGHT);
  const path = (read: (each: Decision) => number | null) => {
    let before: number | null = null;
    return decisions
      .map((each) => {
        const value = read(each);
        const step = value === null ? (before === null ? "" : `H${x(each)}`) : before === null ? `M${x(each)} ${y(value)}` : `H${x(each)}V${y(value)}`;
        before = value;
        return step;
      })
      .join("");
  };
  return { wanted: path((each) => each.wanted), workers: path(readWorkerCount), top, from: first.decided_at, until: last.decided_at };
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}
