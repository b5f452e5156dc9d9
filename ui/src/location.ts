/** What the page shows, as kept in the URL: which queue and which range. Pure apart from the hook at the end. */
import { useCallback, useEffect, useState } from "preact/hooks";
import type { QueueRef } from "./api";

export interface Range {
  /** The value in the URL and the API's `period`. */
  id: string;
  label: string;
  spoken: string;
  /** Long ranges are larger answers, and a pixel of them is more than a refresh. */
  refreshMs: number;
}

export const RANGES = [
  { id: "5m", label: "5 min", spoken: "5 minutes", refreshMs: 2000 },
  { id: "30m", label: "30 min", spoken: "30 minutes", refreshMs: 2000 },
  { id: "2h", label: "2 h", spoken: "2 hours", refreshMs: 5000 },
] as const satisfies readonly Range[];

export const DEFAULT_RANGE: Range = RANGES[1];

export interface View {
  queue: QueueRef | null;
  range: Range;
}

export function parseView(search: string): View {
  const params = new URLSearchParams(search);
  const [org, project, env, queue] = ["org", "project", "env", "queue"].map((name) => params.get(name));
  return {
    queue: org && project && env && queue ? { org, project, env, queue } : null,
    range: RANGES.find((range) => range.id === params.get("range")) ?? DEFAULT_RANGE,
  };
}

export function viewSearch(view: View): string {
  const parts: [string, string][] = [];
  if (view.queue) {
    const { org, project, env, queue } = view.queue;
    parts.push(["org", org], ["project", project], ["env", env], ["queue", queue]);
  }
  parts.push(["range", view.range.id]);
  return `?${parts.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&")}`;
}

/** A stable text for a queue: names may hold any separator, so JSON does the quoting. */
export function queueKey({ org, project, env, queue }: QueueRef): string {
  return JSON.stringify([org, project, env, queue]);
}

export type Navigate = (change: Partial<View>, how?: "push" | "replace") => void;

export function useView(): [View, Navigate] {
  const [view, setView] = useState(() => parseView(location.search));

  useEffect(() => {
    const onPop = () => setView(parseView(location.search));
    addEventListener("popstate", onPop);
    return () => removeEventListener("popstate", onPop);
  }, []);

  const navigate = useCallback<Navigate>((change, how = "push") => {
    const next = { ...parseView(location.search), ...change };
    history[how === "push" ? "pushState" : "replaceState"](null, "", viewSearch(next));
    setView(next);
  }, []);

  return [view, navigate];
}
