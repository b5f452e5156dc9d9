/**
 * Refresh status of the page: whether it is paused, and how old its data is. Each feed (polled or streamed data) reports here, so
 * that the title bar can show "updated 3 s ago", show errors and retry on every page.
 */
import { useEffect, useState } from "preact/hooks";
import type { ApiError } from "./http";

export interface Feed {
  /** performance.now() of the last successful response: monotonic, so changes of the wall clock do not matter. */
  receivedAt: number | null;
  error: ApiError | null;
  refreshMs: number;
  refresh: () => void;
}

export interface RefreshStatus {
  /** Time of the last response of the feed that is most overdue. */
  receivedAt: number | null;
  refreshMs: number;
  error: ApiError | null;
}

const feeds = new Map<symbol, Feed>();
const listeners = new Set<() => void>();
let paused = false;
let notifyPending = false;

export function reportFeed(id: symbol, feed: Feed | null): void {
  if (feed === null) feeds.delete(id);
  else feeds.set(id, feed);
  notifyListeners();
}

export function setPaused(to: boolean): void {
  paused = to;
  notifyListeners();
}

export function refreshAll(): void {
  for (const feed of feeds.values()) feed.refresh();
}

/** Notify listeners once per microtask, however many feeds changed. */
function notifyListeners(): void {
  if (notifyPending) return;
  notifyPending = true;
  queueMicrotask(() => {
    notifyPending = false;
    for (const listener of listeners) listener();
  });
}

function useStore<T>(read: () => T, same: (a: T, b: T) => boolean = Object.is): T {
  const [value, setValue] = useState(read);
  useEffect(() => {
    const onChange = () => setValue((old) => (same(old, read()) ? old : read()));
    listeners.add(onChange);
    onChange();
    return () => void listeners.delete(onChange);
  }, []);
  return value;
}

export function usePaused(): boolean {
  return useStore(() => paused);
}

export function useRefreshStatus(): RefreshStatus {
  return useStore(
    () => worstStatus([...feeds.values()]),
    (a, b) => a.receivedAt === b.receivedAt && a.refreshMs === b.refreshMs && a.error === b.error,
  );
}

/** Return the status of the most overdue feed, and any error. Feeds without a response yet are not overdue. Pure. */
export function worstStatus(feedList: readonly Feed[]): RefreshStatus {
  const error = feedList.find((feed) => feed.error !== null)?.error ?? null;
  const due = (feed: Feed) => (feed.receivedAt ?? 0) + feed.refreshMs;
  const received = feedList.filter((feed) => feed.receivedAt !== null).sort((a, b) => due(a) - due(b));
  const slowest = received[0];
  return { receivedAt: slowest?.receivedAt ?? null, refreshMs: slowest?.refreshMs ?? 0, error };
}
