/** Polling hooks: back off on failure, stop while the page is paused or hidden. */
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { type ApiError, toApiError } from "./http";
import { reportFeed, usePaused } from "./refreshStatus";

export interface Polled<T> {
  data: T | null;
  error: ApiError | null;
  /** performance.now() of the last successful response. */
  receivedAt: number | null;
  refresh: () => void;
}

const BACKOFF_MAX_MS = 15_000;

export interface PollResult<T> {
  key: string;
  data: T | null;
  error: ApiError | null;
  receivedAt: number | null;
}

/**
 * Load immediately and then every `intervalMs`, one request at a time. A new `key` means other data: the previous result is dropped
 * at once, so that numbers never appear under another queue's name. After a failure the last data stays, with the error beside it.
 * While the page is paused, only a new `key` and `refresh` load, once.
 */
export function usePolled<T>(key: string | null, load: (signal: AbortSignal) => Promise<T>, intervalMs: number): Polled<T> {
  const paused = usePaused();
  const [result, setResult] = useState<PollResult<T> | null>(null);
  const [round, setRound] = useState(0);
  const loader = useRef(load);
  loader.current = load;
  const loadedKey = useRef<string | null>(null);
  const loadedRound = useRef(0);

  useEffect(() => {
    if (key === null) return;
    if (paused && loadedKey.current === key && loadedRound.current === round) return;
    const stop = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let failures = 0;
    let busy = false;

    const run = async () => {
      clearTimeout(timer);
      if (busy || (document.hidden && loadedKey.current === key)) return;
      busy = true;
      try {
        const data = await loader.current(stop.signal);
        failures = 0;
        loadedKey.current = key;
        loadedRound.current = round;
        setResult({ key, data, error: null, receivedAt: performance.now() });
      } catch (cause) {
        if (stop.signal.aborted) return;
        failures += 1;
        const error = toApiError(cause);
        setResult((old) => (old?.key === key ? { ...old, error } : { key, data: null, error, receivedAt: null }));
      } finally {
        busy = false;
      }
      if (stop.signal.aborted || (paused && failures === 0)) return;
      timer = setTimeout(() => void run(), failures === 0 ? intervalMs : Math.min(BACKOFF_MAX_MS, intervalMs * 2 ** (failures - 1)));
    };
    const onVisible = () => {
      if (!document.hidden) void run();
    };

    document.addEventListener("visibilitychange", onVisible);
    void run();
    return () => {
      stop.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", onVisible);
    };
  }, [key, intervalMs, paused, round]);

  const refresh = useCallback(() => setRound((n) => n + 1), []);
  const current = result?.key === key ? result : null;
  return useFeed(key !== null, current, intervalMs, refresh);
}

/** Report the age and error of this data to the refresh status of the page. */
export function useFeed<T>(active: boolean, result: PollResult<T> | null, refreshMs: number, refresh: () => void): Polled<T> {
  const id = useRef(Symbol("feed"));
  const receivedAt = result?.receivedAt ?? null;
  const error = result?.error ?? null;
  useEffect(() => {
    reportFeed(id.current, active ? { receivedAt, error, refreshMs, refresh } : null);
  }, [active, receivedAt, error, refreshMs, refresh]);
  useEffect(() => () => reportFeed(id.current, null), []);
  return { data: result?.data ?? null, error, receivedAt, refresh };
}

/** Return performance.now(), updated every second, for texts such as "updated 3 s ago". */
export function useClock(): number {
  const [now, setNow] = useState(() => performance.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(performance.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

/** Return whether a media query matches, and re-render when that changes. */
export function useMedia(query: string): boolean {
  const [matches, setMatches] = useState(() => matchMedia(query).matches);
  useEffect(() => {
    const list = matchMedia(query);
    const onChange = () => setMatches(list.matches);
    onChange();
    list.addEventListener("change", onChange);
    return () => list.removeEventListener("change", onChange);
  }, [query]);
  return matches;
}

export function useTitle(title: string): void {
  useEffect(() => {
    document.title = title;
  }, [title]);
}
