/** Pages of a list after the first, which is the one that is kept fresh. */
import { useEffect, useRef, useState } from "preact/hooks";
import { asApiError, type ApiError } from "./http";

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

/** A new `key` is another list. `keep`: what of the first page has to stay although newer ones push it off. */
export function useMore<T>(key: string, firstNext: string | null, page: LoadPage<T>, keep: readonly T[] = []): More<T> {
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

/** By id, the first of each: pages may overlap while the list changes. */
export function unique<T extends { id: string | number }>(items: readonly T[]): T[] {
  const byId = new Map<string | number, T>();
  for (const item of items) if (!byId.has(item.id)) byId.set(item.id, item);
  return [...byId.values()];
}
