/** Where the viewer is: the page and the environment, as kept in the URL. Pure apart from the hooks at the end. */
import { useCallback, useEffect, useMemo, useState } from "preact/hooks";
import type { QueueRef, Tenant } from "./apiTypes";

export type Page =
  | { name: "overview" }
  | { name: "queues" }
  | { name: "queue"; queue: string }
  | { name: "streams" }
  | { name: "dead" }
  | { name: "alerts" }
  | { name: "job"; id: string }
  | { name: "autoscaler" }
  | { name: "pipeline" }
  | { name: "nowhere" };

export interface Place {
  page: Page;
  tenant: Tenant | null;
  /** What a page keeps in the URL for itself: filters, order, range. */
  params: URLSearchParams;
}

const FIXED: Record<string, Page> = {
  "/": { name: "overview" },
  "/queue-metrics": { name: "queues" },
  "/streams": { name: "streams" },
  "/dead": { name: "dead" },
  "/alerts": { name: "alerts" },
  "/autoscaler": { name: "autoscaler" },
  "/pipeline": { name: "pipeline" },
};
const TENANT = ["org", "project", "env"] as const;

export function parsePlace(pathname: string, search: string): Place {
  const params = new URLSearchParams(search);
  const [org, project, env] = TENANT.map((name) => params.get(name));
  for (const name of TENANT) params.delete(name);
  return { page: parsePage(pathname), tenant: org && project && env ? { org, project, env } : null, params };
}

function parsePage(pathname: string): Page {
  const fixed = FIXED[pathname];
  if (fixed !== undefined) return fixed;
  const [, kind, name, ...more] = pathname.split("/");
  if (name && more.length === 0) {
    const text = decoded(name);
    if (kind === "queues" && text !== null) return { name: "queue", queue: text };
    if (kind === "jobs" && text !== null) return { name: "job", id: text };
  }
  return { name: "nowhere" };
}

function decoded(segment: string): string | null {
  try {
    return decodeURIComponent(segment);
  } catch {
    return null;
  }
}

export type Params = Record<string, string | null>;

export function href(page: Page, tenant: Tenant | null, params: Params = {}): string {
  const given = Object.entries({ ...(tenant === null ? {} : { org: tenant.org, project: tenant.project, env: tenant.env }), ...params });
  const query = given.flatMap(([name, value]) => (value === null || value === "" ? [] : [`${name}=${encodeURIComponent(value)}`]));
  return `${path(page)}${query.length === 0 ? "" : `?${query.join("&")}`}`;
}

function path(page: Page): string {
  if (page.name === "queue") return `/queues/${encodeURIComponent(page.queue)}`;
  if (page.name === "job") return `/jobs/${encodeURIComponent(page.id)}`;
  return Object.entries(FIXED).find(([, fixed]) => fixed.name === page.name)?.[0] ?? "/";
}

export function queueHref(ref: QueueRef): string {
  return href({ name: "queue", queue: ref.queue }, ref);
}

export function jobHref(tenant: Tenant, id: string): string {
  return href({ name: "job", id }, tenant);
}

/** A stable text for a name of several parts: parts may hold any separator, so JSON does the quoting. */
export function tenantKey({ org, project, env }: Tenant): string {
  return JSON.stringify([org, project, env]);
}

export function queueKey({ org, project, env, queue }: QueueRef): string {
  return JSON.stringify([org, project, env, queue]);
}

type How = "push" | "replace";

const MOVED = "headrace:moved";

export function go(to: string, how: How = "push"): void {
  if (to === location.pathname + location.search) return;
  const samePage = to.split("?")[0] === location.pathname;
  history[how === "push" ? "pushState" : "replaceState"](null, "", to);
  dispatchEvent(new Event(MOVED));
  if (!samePage && how === "push") scrollTo(0, 0);
}

/** Plain clicks on the dashboard's own links change the page without loading it anew; every other click is the browser's. */
export function followLinks(): void {
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest("a") : null;
    if (link === null || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    if (link.target !== "" || link.hash !== "" || link.origin !== location.origin || parsePage(link.pathname).name === "nowhere") return;
    event.preventDefault();
    go(link.pathname + link.search);
  });
}

export function usePlace(): Place {
  const [address, setAddress] = useState(() => location.pathname + location.search);
  useEffect(() => {
    const onMove = () => setAddress(location.pathname + location.search);
    addEventListener("popstate", onMove);
    addEventListener(MOVED, onMove);
    return () => {
      removeEventListener("popstate", onMove);
      removeEventListener(MOVED, onMove);
    };
  }, []);
  return useMemo(() => parsePlace(location.pathname, location.search), [address]);
}

export type SetParams = (change: Params, how?: How) => void;

/** Changes what this page keeps in the URL; null takes a parameter out. */
export function useSetParams(): SetParams {
  return useCallback<SetParams>((change, how = "push") => {
    const { page, tenant, params } = parsePlace(location.pathname, location.search);
    go(href(page, tenant, { ...Object.fromEntries(params), ...change }), how);
  }, []);
}
