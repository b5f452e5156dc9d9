/** Routes: the page, the environment and the page's parameters, stored in the URL. Pure apart from navigation and hooks. */
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
  | { name: "notFound" };

export interface Route {
  page: Page;
  tenant: Tenant | null;
  /** Parameters of the page: filters, order, range. */
  params: URLSearchParams;
}

const STATIC_ROUTES: Record<string, Page> = {
  "/": { name: "overview" },
  "/queue-metrics": { name: "queues" },
  "/streams": { name: "streams" },
  "/dead": { name: "dead" },
  "/alerts": { name: "alerts" },
  "/autoscaler": { name: "autoscaler" },
  "/pipeline": { name: "pipeline" },
};
const TENANT = ["org", "project", "env"] as const;

export function parseRoute(pathname: string, search: string): Route {
  const params = new URLSearchParams(search);
  const [org, project, env] = TENANT.map((name) => params.get(name));
  for (const name of TENANT) params.delete(name);
  return { page: parsePage(pathname), tenant: org && project && env ? { org, project, env } : null, params };
}

function parsePage(pathname: string): Page {
  const fixed = STATIC_ROUTES[pathname];
  if (fixed !== undefined) return fixed;
  const [, kind, name, ...more] = pathname.split("/");
  if (name && more.length === 0) {
    const text = decodeSegment(name);
    if (kind === "queues" && text !== null) return { name: "queue", queue: text };
    if (kind === "jobs" && text !== null) return { name: "job", id: text };
  }
  return { name: "notFound" };
}

function decodeSegment(segment: string): string | null {
  try {
    return decodeURIComponent(segment);
  } catch {
    return null;
  }
}

export type Params = Record<string, string | null>;

export function href(page: Page, tenant: Tenant | null, params: Params = {}): string {
  const entries = Object.entries({ ...(tenant === null ? {} : { org: tenant.org, project: tenant.project, env: tenant.env }), ...params });
  const query = entries.flatMap(([name, value]) => (value === null || value === "" ? [] : [`${name}=${encodeURIComponent(value)}`]));
  return `${pagePath(page)}${query.length === 0 ? "" : `?${query.join("&")}`}`;
}

function pagePath(page: Page): string {
  if (page.name === "queue") return `/queues/${encodeURIComponent(page.queue)}`;
  if (page.name === "job") return `/jobs/${encodeURIComponent(page.id)}`;
  return Object.entries(STATIC_ROUTES).find(([, fixed]) => fixed.name === page.name)?.[0] ?? "/";
}

export function queueHref(ref: QueueRef): string {
  return href({ name: "queue", queue: ref.queue }, ref);
}

export function jobHref(tenant: Tenant, id: string): string {
  return href({ name: "job", id }, tenant);
}

/** Return a unique string for a tenant. Names may contain any separator, so JSON does the quoting. */
export function tenantKey({ org, project, env }: Tenant): string {
  return JSON.stringify([org, project, env]);
}

export function queueKey({ org, project, env, queue }: QueueRef): string {
  return JSON.stringify([org, project, env, queue]);
}

type HistoryMode = "push" | "replace";

const NAVIGATED = "headrace:navigated";

export function navigate(to: string, mode: HistoryMode = "push"): void {
  if (to === location.pathname + location.search) return;
  const samePage = to.split("?")[0] === location.pathname;
  history[mode === "push" ? "pushState" : "replaceState"](null, "", to);
  dispatchEvent(new Event(NAVIGATED));
  if (!samePage && mode === "push") scrollTo(0, 0);
}

/** Handle plain clicks on links to dashboard pages without reloading; leave all other clicks to the browser. */
export function interceptLinks(): void {
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest("a") : null;
    if (link === null || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    if (link.target !== "" || link.hash !== "" || link.origin !== location.origin || parsePage(link.pathname).name === "notFound") return;
    event.preventDefault();
    navigate(link.pathname + link.search);
  });
}

export function useRoute(): Route {
  const [address, setAddress] = useState(() => location.pathname + location.search);
  useEffect(() => {
    const onNavigate = () => setAddress(location.pathname + location.search);
    addEventListener("popstate", onNavigate);
    addEventListener(NAVIGATED, onNavigate);
    return () => {
      removeEventListener("popstate", onNavigate);
      removeEventListener(NAVIGATED, onNavigate);
    };
  }, []);
  return useMemo(() => parseRoute(location.pathname, location.search), [address]);
}

export type SetParams = (change: Params, mode?: HistoryMode) => void;

/** Return a function that changes parameters of the current page; null removes a parameter. */
export function useSetParams(): SetParams {
  return useCallback<SetParams>((change, mode = "push") => {
    const { page, tenant, params } = parseRoute(location.pathname, location.search);
    navigate(href(page, tenant, { ...Object.fromEntries(params), ...change }), mode);
  }, []);
}
