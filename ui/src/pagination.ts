/** Load further pages of a list whose first page is polled. */
import { useEffect, useRef, useState } from "preact/hooks";
import { type ApiError, toApiError } from "./http";
import { usePolled } from "./polling";

export interface ListPage<T> {
  items: T[];
  next: string | null;
}

export interface PageLoader<T> extends ListPage<T> {
  busy: boolean;
  error: ApiError | null;
  load: () => void;
}

type LoadPage<T> = (cursor: string | null, signal: AbortSignal) => Promise<ListPage<T>>;

interface HasId {
  id: string | number;
}

const EMPTY: readonly never[] = [];

/** Load further pages on demand. A new `key` resets them. `keep` is the first page, whose items stay listed when newer ones push them off it. */
export function usePages<T extends HasId>(key: string, firstNext: string | null, page: LoadPage<T>, keep: readonly T[] = EMPTY): PageLoader<T> {
  const [pages, setPages] = useState<ListPage<T> | null>(null);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  const inFlight = useRef<AbortController | null>(null);
  useEffect(
    () => () => {
      inFlight.current?.abort(); // a request for the previous list
      setPages(null);
      setBusy(false);
      setError(null);
    },
    [key],
  );
  useEffect(() => setPages((old) => old && mergeFirstPage(keep, old)), [keep]);
  const next = pages === null ? firstNext : pages.next;
  const load = async () => {
    const controller = new AbortController();
    inFlight.current = controller;
    setBusy(true);
    try {
      const loaded = await page(next, controller.signal);
      if (controller.signal.aborted) return;
      setPages((old) => ({ items: [...(old?.items ?? keep), ...loaded.items], next: loaded.next }));
      setError(null);
    } catch (cause) {
      if (controller.signal.aborted) return;
      setError(toApiError(cause));
    }
    setBusy(false);
  };
  return { items: pages?.items ?? [], next, busy, error, load: () => void load() };
}

/** Load further pages of a list whose items may disappear, and load them again every `intervalMs`, like the first page. */
export function useRefreshedPages<T>(key: string, firstNext: string | null, page: LoadPage<T>, intervalMs: number): PageLoader<T> & { refresh: () => void } {
  const [pageCount, setPageCount] = useState(0);
  useEffect(() => () => setPageCount(0), [key]); // a new list starts with its first page
  const { data, refresh } = usePolled(
    pageCount === 0 ? null : key,
    async (signal) => ({ ...(await loadPages(page, firstNext, pageCount, signal)), count: pageCount }),
    intervalMs,
  );
  const load = () => {
    setPageCount((count) => count + 1);
    refresh();
  };
  return { items: data?.items ?? [], next: data === null ? firstNext : data.next, busy: pageCount > (data?.count ?? 0), error: null, load, refresh };
}

/** Load up to `count` pages from a cursor. */
export async function loadPages<T>(page: LoadPage<T>, cursor: string | null, count: number, signal: AbortSignal): Promise<ListPage<T>> {
  const all: ListPage<T> = { items: [], next: cursor };
  for (let loaded = 0; loaded < count && all.next !== null; loaded += 1) {
    const { items, next } = await page(all.next, signal);
    all.items.push(...items);
    all.next = next;
  }
  return all;
}

/** Put the current first page before the loaded pages. Null if they do not overlap, because items in between would be missing. */
export function mergeFirstPage<T extends HasId>(first: readonly T[], pages: ListPage<T>): ListPage<T> | null {
  if (first.length === 0) return pages;
  const known = new Set(pages.items.map(({ id }) => id));
  if (!first.some(({ id }) => known.has(id))) return null;
  return { ...pages, items: uniqueById([...first, ...pages.items]) };
}

/** Remove duplicates by id and keep the first of each: pages may overlap while the list changes. */
export function uniqueById<T extends HasId>(items: readonly T[]): T[] {
  const byId = new Map<string | number, T>();
  for (const item of items) if (!byId.has(item.id)) byId.set(item.id, item);
  return [...byId.values()];
}
