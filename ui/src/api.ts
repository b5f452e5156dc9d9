/**
 * The API as the dashboard sees it: types of the answers, one function per endpoint, one error class.
 * Promises: every failure (network, timeout, problem document, foreign answer) becomes an ApiError with words fit for people.
 * Imports nothing of the page.
 */

/** A queue's full name. Any part may hold any Unicode, so it is encoded for URLs here and shown as text only. */
export interface QueueRef {
  org: string;
  project: string;
  env: string;
  queue: string;
}

export interface QueueState extends QueueRef {
  depth: number;
  running: number;
  limit: number | null;
  paused: boolean;
  oldest_at: string | null;
  bytes: number;
}

export interface QueueList {
  queues: QueueState[];
  /** The server's clock when it answered: ages are measured against this, never against the viewer's clock. */
  timestamp: string;
}

export interface MetricPoint {
  timestamp: string;
  throughput: {
    enqueued: number;
    dequeued: number;
    completed: number;
    enqueued_per_s: number;
    dequeued_per_s: number;
    completed_per_s: number;
  };
  queue_depth: { max: number | null; last: number | null };
  latency: { avg_wait_ms: number | null; max_age_ms: number | null };
  concurrency: { max: number | null; last: number | null; limit: number | null; utilization_pct: number | null };
  failures: { nack: number; dlq: number; ttl_expired: number };
}

export interface QueueMetrics {
  queue: string;
  period: { start: string; end: string };
  resolution: string;
  /** Points that end at or before this are final; null when nothing is. */
  watermark: string | null;
  timeseries: MetricPoint[];
}

export class ApiError extends Error {
  override readonly name = "ApiError";

  constructor(
    readonly title: string,
    readonly detail: string,
    /** The HTTP status, or null when no answer came. */
    readonly status: number | null = null,
  ) {
    super(detail === "" ? title : `${title}: ${detail}`);
  }
}

export const REQUEST_TIMEOUT_MS = 10_000;

export async function listQueues(signal: AbortSignal): Promise<QueueList> {
  const body = await getJson("/api/v1/queues", signal);
  if (!isRecord(body) || !Array.isArray(body["queues"])) throw foreignAnswer("/api/v1/queues");
  return body as unknown as QueueList;
}

export async function queueMetrics(ref: QueueRef, period: string, signal: AbortSignal): Promise<QueueMetrics> {
  const path = metricsPath(ref, period);
  const body = await getJson(path, signal);
  if (!isRecord(body) || !Array.isArray(body["timeseries"]) || !isRecord(body["period"])) throw foreignAnswer(path);
  return body as unknown as QueueMetrics;
}

export function metricsPath(ref: QueueRef, period: string): string {
  const tenant = `org=${encodeURIComponent(ref.org)}&project=${encodeURIComponent(ref.project)}&env=${encodeURIComponent(ref.env)}`;
  return `/api/v1/queues/${pathSegment(ref.queue)}/metrics?${tenant}&period=${encodeURIComponent(period)}`;
}

/** Browsers resolve "." and ".." segments, percent-encoded or not, before they send: such a queue cannot be named in a path. */
function pathSegment(name: string): string {
  if (name === "." || name === "..") {
    throw new ApiError("This queue cannot be shown", `Browsers rewrite paths that contain “${name}” as a whole segment.`);
  }
  return encodeURIComponent(name);
}

async function getJson(path: string, signal: AbortSignal): Promise<unknown> {
  const timeout = AbortSignal.timeout(REQUEST_TIMEOUT_MS);
  let response: Response;
  let text: string;
  try {
    response = await fetch(path, {
      headers: { accept: "application/json, application/problem+json" },
      signal: AbortSignal.any([signal, timeout]),
    });
    text = await response.text();
  } catch (cause) {
    if (signal.aborted) throw cause; // the page moved on: nobody is told
    if (timeout.aborted) throw new ApiError("Headrace is slow to answer", `No answer within ${REQUEST_TIMEOUT_MS / 1000} s.`);
    throw new ApiError("Headrace cannot be reached", "The server does not answer. It may be stopped or restarting.");
  }
  const body = parseJson(text);
  if (!response.ok) throw problem(response.status, body);
  if (body === undefined) throw foreignAnswer(path);
  return body;
}

/** An RFC 9457 problem document, or whatever a proxy in between said, as an ApiError. */
export function problem(status: number, body: unknown): ApiError {
  const fields = isRecord(body) ? body : {};
  const title = typeof fields["title"] === "string" && fields["title"] !== "" ? fields["title"] : `The server answered ${status}`;
  const detail = typeof fields["detail"] === "string" ? fields["detail"] : "";
  return new ApiError(title, detail, status);
}

function foreignAnswer(path: string): ApiError {
  return new ApiError("Unexpected answer", `${path} did not return what this dashboard understands. Reload the page after an upgrade.`);
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
