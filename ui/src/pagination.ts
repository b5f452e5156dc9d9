/** Pages of a list after the first, which is the one that is kept fresh. */
import { useEffect, useRef, useState } from "preact/hooks";
import { asApiError, type ApiError } from "./http";
import { useLive } from "./polling";

export interface Paged<T> {
  items: T[];
  next: string | null;
}

export interface More<T> extends Paged<T> {
  busy: boolean;
  error: ApiError | null;
  load: () => void;
}

type LoadPage<T> = (cursor: string | null, signal: AbortSignal) => Promise<Paged<T>>;

interface Known {
  id: string | number;
}

const NOTHING: readonly never[] = [];

/** A new `key` is another list. `keep`: what of the first page has to stay although newer ones push it off. */
export function useMore<T extends Known>(key: string, firstNext: string | null, page: LoadPage<T>, keep: readonly T[] = NOTHING): More<T> {
  const [pages, setPages] = useState<Paged<T> | null>(null);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  const work = useRef<AbortController | null>(null);
  useEffect(
    () => () => {
      work.current?.abort(); // of another list: it is of no use any more
      setPages(null);
      setBusy(false);
      setError(null);
    },
    [key],
  );
  useEffect(() => setPages((old) => old && joined(keep, old)), [keep]);
  const next = pages === null ? firstNext : pages.next;
  const load = async () => {
    const mine = new AbortController();
    work.current = mine;
    setBusy(true);
    try {
      const found = await page(next, mine.signal);
      if (mine.signal.aborted) return;
      setPages((old) => ({ items: [...(old?.items ?? keep), ...found.items], next: found.next }));
      setError(null);
    } catch (cause) {
      if (mine.signal.aborted) return;
      setError(asApiError(cause));
    }
    setBusy(false);
  };
  return { items: pages?.items ?? [], next, busy, error, load: () => void load() };
}

/** Pages of a list whose items may end: they are asked for again every `intervalMs`, as the first one is. */
export function useFreshMore<T>(key: string, firstNext: string | null, page: LoadPage<T>, intervalMs: number): More<T> & { refresh: () => void } {
  const [wanted, setWanted] = useState(0);
  useEffect(() => () => setWanted(0), [key]); // another list begins with its first page
  const { data, refresh } = useLive(
    wanted === 0 ? null : key,
    async (signal) => ({ ...(await follow(page, firstNext, wanted, signal)), count: wanted }),
    intervalMs,
  );
  const load = () => {
    setWanted((count) => count + 1);
    refresh();
  };
  return { items: data?.items ?? [], next: data === null ? firstNext : data.next, busy: wanted > (data?.count ?? 0), error: null, load, refresh };
}

/** So many pages from this cursor on; fewer where the list ends. */
export async function follow<T>(page: LoadPage<T>, cursor: string | null, count: number, signal: AbortSignal): Promise<Paged<T>> {
  const all: Paged<T> = { items: [], next: cursor };
  for (let loaded = 0; loaded < count && all.next !== null; loaded += 1) {
    const { items, next } = await page(all.next, signal);
    all.items.push(...items);
    all.next = next;
  }
  return all;
}

/** Pages with what is on the first one now. Null where nothing joins them: nobody knows what came in between. */
export function joined<T extends Known>(first: readonly T[], pages: Paged<T>): Paged<T> | null {
  if (first.length === 0) return pages;
  const known = new Set(pages.items.map(({ id }) => id));
  if (!first.some(({ id }) => known.has(id))) return null;
  return { ...pages, items: unique([...first, ...pages.items]) };
}

/** By id, the first of each: pages may overlap while the list changes. */
export function unique<T extends Known>(items: readonly T[]): T[] {
  const byId = new Map<string | number, T>();
  for (const item of items) if (!byId.has(item.id)) byId.set(item.id, item);
  return [...byId.values()];
}
