/** Pages of a list after the first, which is the one that is kept fresh. */
import { useEffect, useRef, useState } from "preact/hooks";
import { toApiError, type ApiError } from "./http";
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

/** A new `key` is another list. `keep`: what of the first page has to stay although newer ones push it off. */
export function usePages<T extends HasId>(key: string, firstNext: string | null, page: LoadPage<T>, keep: readonly T[] = EMPTY): PageLoader<T> {
  const [pages, setPages] = useState<ListPage<T> | null>(null);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  const inFlight = useRef<AbortController | null>(null);
  useEffect(
    () => () => {
      inFlight.current?.abort(); // of another list: it is of no use any more
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

/** Pages of a list whose items may end: they are asked for again every `intervalMs`, as the first one is. */
export function useRefreshedPages<T>(key: string, firstNext: string | null, page: LoadPage<T>, intervalMs: number): PageLoader<T> & { refresh: () => void } {
  const [pageCount, setPageCount] = useState(0);
  useEffect(() => () => setPageCount(0), [key]); // another list begins with its first page
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

/** So many pages from this cursor on; fewer where the list ends. */
export async function loadPages<T>(page: LoadPage<T>, cursor: string | null, count: number, signal: AbortSignal): Promise<ListPage<T>> {
  const all: ListPage<T> = { items: [], next: cursor };
  for (let loaded = 0; loaded < count && all.next !== null; loaded += 1) {
    const { items, next } = await page(all.next, signal);
    all.items.push(...items);
    all.next = next;
  }
  return all;
}

/** Pages with what is on the first one now. Null where nothing joins them: nobody knows what came in between. */
export function mergeFirstPage<T extends HasId>(first: readonly T[], pages: ListPage<T>): ListPage<T> | null {
  if (first.length === 0) return pages;
  const known = new Set(pages.items.map(({ id }) => id));
  if (!first.some(({ id }) => known.has(id))) return null;
  return { ...pages, items: uniqueById([...first, ...pages.items]) };
}

/** By id, the first of each: pages may overlap while the list changes. */
export function uniqueById<T extends HasId>(items: readonly T[]): T[] {
  const byId = new Map<string | number, T>();
  for (const item of items) if (!byId.has(item.id)) byId.set(item.id, item);
  return [...byId.values()];
}
