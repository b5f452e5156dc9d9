/** Shell around every page: session, selected environment, refresh status. Pages receive these and keep the rest of their state. */
import { useEffect } from "preact/hooks";
import { describeOpenCount } from "./alerts";
import { listHealthIncidents, listIncidents } from "./alertsApi";
import { listEnvironments } from "./api";
import type { CurrentKey, Environment, EnvironmentList, Incident, IncidentList, Tenant } from "./apiTypes";
import type { ServerClock } from "./liveQueues";
import { type Polled, useClock, usePolled, useTitle } from "./polling";
import { refreshAll, setPaused, usePaused, useRefreshStatus } from "./refreshStatus";
import { href, navigate, type Page, type Route, tenantKey, useRoute } from "./router";
import { canOperate, hasFullScope, signOut, useSession } from "./session";
import { pickDefaultTenant } from "./tenantOptions";
import { Freshness } from "./components/Freshness";
import { PauseIcon, SignOutIcon } from "./components/icons";
import { EmptyNotice, ErrorNotice, LoadingNotice } from "./components/Notice";
import { TenantSwitch } from "./components/TenantSwitch";
import { type Badge, TitleBar } from "./components/TitleBar";
import { AlertsPage } from "./pages/AlertsPage";
import { AutoscalerPage } from "./pages/AutoscalerPage";
import { DeadPage } from "./pages/DeadPage";
import { JobPage } from "./pages/JobPage";
import { OverviewPage } from "./pages/OverviewPage";
import { PipelinePage } from "./pages/PipelinePage";
import { QueuePage } from "./pages/QueuePage";
import { QueuesPage } from "./pages/QueuesPage";
import { SignInPage } from "./pages/SignInPage";
import { StreamsPage } from "./pages/StreamsPage";

const ENVIRONMENTS_MS = 5000;
const ALERTS_MS = 5000;
const HEALTH_MS = 15_000;
const TENANT_PAGES: readonly Page["name"][] = ["overview", "queues", "queue", "dead", "alerts", "job"];

export function App() {
  const { session, reload, markSignedOut } = useSession();
  if (session.state === "unknown") return null;
  if (session.state === "signed-out") return <SignInPage onSignedIn={reload} />;
  return <Shell currentKey={session.currentKey} onSignedOut={markSignedOut} />;
}

function Shell({ currentKey, onSignedOut }: { currentKey: CurrentKey | null; onSignedOut: () => void }) {
  const route = useRoute();
  const list = usePolled("environments", listEnvironments, ENVIRONMENTS_MS);
  const environments = list.data?.environments ?? null;
  const alerts = useOpenIncidents(route.tenant, currentKey);
  const refreshStatus = useRefreshStatus();
  useDefaultTenant(route, environments);
  useFocusOnPage(route.page);
  useEffect(() => {
    if (refreshStatus.error?.status === 401) onSignedOut(); // the session has ended
  }, [refreshStatus.error]);

  const needsTenant = TENANT_PAGES.includes(route.page.name);
  const ready = !needsTenant || route.tenant !== null;
  return (
    <>
      <TitleBar page={route.page} tenant={route.tenant} badges={buildBadges(alerts)}>
        <TitleBarActions onSignedOut={onSignedOut} />
      </TitleBar>
      <main id="main" class="page" tabIndex={-1}>
        {needsTenant && route.tenant !== null && (
          <TenantSwitch environments={environments ?? []} tenant={route.tenant} onPick={(tenant) => navigate(hrefInTenant(route, tenant))} />
        )}
        {refreshStatus.error !== null && refreshStatus.error.status !== 401 && (
          <ErrorNotice error={refreshStatus.error} keepsData={refreshStatus.receivedAt !== null} onRetry={refreshAll} />
        )}
        {needsTenant && route.page.name !== "queue" && environments?.length === 0 && (
          <EmptyNotice title="No queues yet">A queue appears here when its first job is enqueued. This page updates automatically.</EmptyNotice>
        )}
        {!ready && environments === null && refreshStatus.error === null && <LoadingNotice>Loading queues…</LoadingNotice>}
        {ready && <Content route={route} environments={environments} currentKey={currentKey} alerts={alerts} clock={toServerClock(list)} />}
      </main>
    </>
  );
}

interface ContentProps {
  route: Route;
  environments: readonly Environment[] | null;
  currentKey: CurrentKey | null;
  alerts: OpenIncidents;
  clock: ServerClock | null;
}

function Content({ route, environments, currentKey, alerts, clock }: ContentProps) {
  const { page, params } = route;
  const operate = canOperate(currentKey);
  if (page.name === "pipeline") return <PipelinePage />;
  if (page.name === "autoscaler") return <AutoscalerPage tenant={route.tenant} params={params} />;
  if (page.name === "streams") return <StreamsPage params={params} />;
  if (page.name === "notFound" || route.tenant === null) return <NotFoundPage tenant={route.tenant} />;
  // Keyed by environment, so that no state of the previous one remains.
  const common = { key: tenantKey(route.tenant), tenant: route.tenant, params };
  if (page.name === "queues") return <QueuesPage {...common} />;
  if (page.name === "queue") return <QueuePage {...common} key={`${common.key} ${page.queue}`} queue={page.queue} operate={operate} />;
  if (page.name === "dead") return <DeadPage {...common} operate={operate} />;
  if (page.name === "alerts") return <AlertsPage {...common} {...alerts} currentKey={currentKey} clock={clock} />;
  if (page.name === "job") return <JobPage {...common} key={`${common.key} ${page.id}`} id={page.id} operate={operate} />;
  return <OverviewPage {...common} {...alerts} environments={environments} />;
}

function TitleBarActions({ onSignedOut }: { onSignedOut: () => void }) {
  const refreshStatus = useRefreshStatus();
  const paused = usePaused();
  const now = useClock();
  return (
    <>
      <Freshness status={refreshStatus} now={now} paused={paused} />
      <button type="button" class="button" aria-label={paused ? "Resume updates" : "Pause updates"} data-testid="pause" onClick={() => setPaused(!paused)}>
        <PauseIcon paused={paused} />
        <span>{paused ? "Resume" : "Pause"}</span>
      </button>
      <button type="button" class="button" aria-label="Sign out" data-testid="sign-out" onClick={() => void signOut().then(onSignedOut, onSignedOut)}>
        <SignOutIcon />
        <span>Sign out</span>
      </button>
    </>
  );
}

function NotFoundPage({ tenant }: { tenant: Tenant | null }) {
  useTitle("Not found – Headrace");
  return (
    <EmptyNotice title="Page not found">
      <a href={href({ name: "overview" }, tenant)}>Go to the overview</a>
    </EmptyNotice>
  );
}

/** Build the link to the same page in another environment; pages of one queue or job lead to the list of queues. */
function hrefInTenant(route: Route, tenant: Tenant): string {
  const { page } = route;
  if (page.name === "queue" || page.name === "job") return href({ name: "queues" }, tenant);
  const kept = ["range", "start", "end", "group", "sort", "show"];
  return href(page, tenant, Object.fromEntries([...route.params].filter(([name]) => kept.includes(name))));
}

interface OpenIncidents {
  /** Open incidents of the environment. */
  open: Polled<IncidentList>;
  /** Open incidents of Headrace's own health. */
  health: readonly Incident[];
}

function useOpenIncidents(tenant: Tenant | null, currentKey: CurrentKey | null): OpenIncidents {
  const key = tenant === null ? null : `open ${tenantKey(tenant)}`;
  const open = usePolled(key, (signal) => (tenant === null ? Promise.reject(new Error("no environment")) : listIncidents(tenant, "open", null, signal)), ALERTS_MS);
  const health = usePolled(hasFullScope(currentKey) ? "health" : null, listHealthIncidents, HEALTH_MS);
  return { open, health: health.data ?? NO_INCIDENTS };
}

const NO_INCIDENTS: readonly Incident[] = [];

function buildBadges({ open, health }: OpenIncidents): { alerts?: Badge } {
  const all = [...health, ...(open.data?.incidents ?? [])];
  if (all.length === 0) return {};
  const more = open.data !== null && open.data.next !== null;
  return { alerts: { text: `${all.length}${more ? "+" : ""}`, description: describeOpenCount(all.length, more), urgent: all.some((each) => each.state === "firing") } };
}

function toServerClock({ data, receivedAt }: Polled<EnvironmentList>): ServerClock | null {
  return data === null || receivedAt === null ? null : { serverMs: Date.parse(data.timestamp), at: receivedAt };
}

function useDefaultTenant(route: Route, environments: readonly Environment[] | null): void {
  useEffect(() => {
    if (route.tenant !== null || environments === null || !TENANT_PAGES.includes(route.page.name)) return;
    const tenant = pickDefaultTenant(environments);
    if (tenant !== null) navigate(href(route.page, tenant, Object.fromEntries(route.params)), "replace");
  }, [route, environments]);
}

/** Move focus to the page after navigation, because the link that had it may be gone. */
function useFocusOnPage(page: Page): void {
  const name = JSON.stringify(page);
  useEffect(() => {
    if (document.activeElement === document.body || document.activeElement === null) document.getElementById("main")?.focus({ preventScroll: true });
  }, [name]);
}
