/**
 * Live state of the queues of an environment, streamed by the server. If the stream is refused (too many are open), they are polled.
 * A silent stream is probed, because a dead connection and an idle environment look the same.
 */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { listQueues, streamPath } from "./api";
import type { QueueState, QueueUpdate, Tenant } from "./apiTypes";
import { ApiError, toApiError, unreachableError } from "./http";
import { type Polled, type PollResult, useFeed } from "./polling";
import { usePaused } from "./refreshStatus";
import { queueKey, tenantKey } from "./router";

/** Time of the server's clock, in ms, and performance.now() when it was received. */
export interface ServerClock {
  serverMs: number;
  at: number;
}

export interface LiveQueues extends ServerClock {
  byKey: ReadonlyMap<string, QueueState>;
}

const SILENCE_MS = 5000;
const POLL_MS = 2000;
const STREAM_RETRY_MS = 30_000;

/** Return the current server time in ms, extrapolated with the viewer's monotonic clock. */
export function serverNow(clock: ServerClock, now: number): number {
  return clock.serverMs + Math.max(0, now - clock.at);
}

/** Merge an update into the previous state. Pure. */
export function applyUpdate(before: LiveQueues | null, update: QueueUpdate, at: number): LiveQueues {
  const byKey = new Map(before?.byKey ?? []);
  for (const queue of update.queues) byKey.set(queueKey(queue), queue);
  for (const ref of update.gone ?? []) byKey.delete(queueKey(ref));
  return { byKey, serverMs: Date.parse(update.timestamp), at };
}

export function useLiveQueues(tenant: Tenant | null): Polled<LiveQueues> {
  const paused = usePaused();
  const [result, setResult] = useState<PollResult<LiveQueues> | null>(null);
  const [round, setRound] = useState(0);
  const key = tenant === null ? null : tenantKey(tenant);
  const hasData = result?.key === key && result?.data !== null;
  const lastRound = useRef(0);

  useEffect(() => {
    if (tenant === null || key === null) return;
    const refreshRequested = lastRound.current !== round;
    lastRound.current = round;
    if (paused && hasData && !refreshRequested) return;
    return (paused && hasData ? fetchOnce : subscribe)(tenant, {
      update: (change) =>
        setResult((old) => {
          const at = performance.now();
          return { key, data: change(old?.key === key ? old.data : null, at), error: null, receivedAt: at };
        }),
      fail: (error) => setResult((old) => (old?.key === key ? { ...old, error } : { key, data: null, error, receivedAt: null })),
    });
  }, [key, paused, round]);

  const refresh = useCallback(() => setRound((n) => n + 1), []);
  return useFeed(key !== null, result?.key === key ? result : null, SILENCE_MS, refresh);
}

interface Subscriber {
  update: (change: (before: LiveQueues | null, at: number) => LiveQueues) => void;
  fail: (error: ApiError) => void;
}

/** Fetch the queues once, for a paused page after an action. */
function fetchOnce(tenant: Tenant, listener: Subscriber): () => void {
  const stop = new AbortController();
  listQueues(tenant, stop.signal).then(
    (list) => listener.update((_, at) => applyUpdate(null, list, at)),
    (cause: unknown) => {
      if (!stop.signal.aborted) listener.fail(toApiError(cause));
    },
  );
  return () => stop.abort();
}

/** Subscribe to updates while the page is visible. Returns the function that unsubscribes. */
function subscribe(tenant: Tenant, listener: Subscriber): () => void {
  const stop = new AbortController();
  let source: EventSource | null = null;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let refusedAt = Number.NEGATIVE_INFINITY;
  let events = 0;

  const onMessage = (event: MessageEvent<string>) => {
    const update = JSON.parse(event.data) as QueueUpdate;
    events += 1;
    listener.update((before, at) => applyUpdate(event.type === "snapshot" ? null : before, update, at));
    scheduleProbe(SILENCE_MS);
  };
  const open = () => {
    source = new EventSource(streamPath(tenant));
    source.addEventListener("snapshot", onMessage);
    source.addEventListener("change", onMessage);
    source.addEventListener("unavailable", (event) => {
      const { detail } = JSON.parse((event as MessageEvent<string>).data) as { detail: string };
      listener.fail(new ApiError("Live state unavailable", detail, 503));
    });
    source.addEventListener("end", () => listener.fail(new ApiError("Signed out", "Your key is no longer valid.", 401)));
    source.onerror = () => {
      if (source?.readyState === EventSource.CONNECTING) return void listener.fail(unreachableError());
      close(); // refused: poll for a while
      refusedAt = performance.now();
      void probe();
    };
  };
  const close = () => {
    source?.close();
    source = null;
  };
  const scheduleProbe = (ms: number) => {
    clearTimeout(timer);
    timer = setTimeout(() => void probe(), ms);
  };
  const probe = async () => {
    if (document.hidden || stop.signal.aborted) return;
    const before = events;
    try {
      const list = await listQueues(tenant, stop.signal);
      if (events === before) listener.update((_, at) => applyUpdate(null, list, at)); // else the stream has sent newer data
    } catch (cause) {
      if (stop.signal.aborted) return;
      listener.fail(toApiError(cause));
    }
    if (stop.signal.aborted) return;
    if (source === null && performance.now() - refusedAt > STREAM_RETRY_MS) open();
    scheduleProbe(source === null ? POLL_MS : SILENCE_MS);
  };
  const onVisible = () => {
    if (document.hidden) close(); // browsers allow few connections, and a hidden tab needs none
    else if (source === null) {
      open();
      scheduleProbe(SILENCE_MS);
    }
  };

  document.addEventListener("visibilitychange", onVisible);
  onVisible();
  return () => {
    stop.abort();
    clearTimeout(timer);
    close();
    document.removeEventListener("visibilitychange", onVisible);
  };
}

/** Why no job of a queue is running. */
export type QueueProblem = "paused" | "limit 0" | "stalled";

const STALLED_MS = 60_000;

export function queueProblem(queue: Pick<QueueState, "paused" | "limit" | "depth" | "running" | "oldest_at">, nowMs: number): QueueProblem | null {
  if (queue.paused) return "paused";
  if (queue.depth === 0 || queue.running > 0) return null;
  if (queue.limit === 0) return "limit 0";
  return queue.oldest_at !== null && nowMs - Date.parse(queue.oldest_at) > STALLED_MS ? "stalled" : null;
}
