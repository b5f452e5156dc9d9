/**
 * The pulse of the page: whether it is paused, and how fresh each thing is that it shows. Everything that keeps data fresh reports
 * here, so that the title bar can say "updated 3 s ago", tell of failures and try again, whatever page is open.
 */
import { useEffect, useState } from "preact/hooks";
import type { ApiError } from "./http";

export interface Feed {
  /** performance.now() of the last good answer: monotonic, so a changed wall clock does not matter. */
  receivedAt: number | null;
  error: ApiError | null;
  refreshMs: number;
  refresh: () => void;
}

export interface RefreshStatus {
  /** Of the feed that is furthest behind its own pace. */
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

/** Once per turn, however many feeds changed in it. */
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

/** Pure: the worst of all. What has not come at all yet is not late; that is "loading" as long as nothing else came. */
export function worstStatus(feedList: readonly Feed[]): RefreshStatus {
  const error = feedList.find((feed) => feed.error !== null)?.error ?? null;
  const due = (feed: Feed) => (feed.receivedAt ?? 0) + feed.refreshMs;
  const answered = feedList.filter((feed) => feed.receivedAt !== null).sort((a, b) => due(a) - due(b));
  const slowest = answered[0];
  return { receivedAt: slowest?.receivedAt ?? null, refreshMs: slowest?.refreshMs ?? 0, error };
}
