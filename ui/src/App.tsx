/** The shell around every page: who looks, which environment, what is fresh. Pages get these and hold the rest themselves. */
import { useEffect } from "preact/hooks";
import { openWords } from "./alerts";
import { healthIncidents, listIncidents } from "./alertsApi";
import { listEnvironments } from "./api";
import { useClock, useLive, useTitle, type Live } from "./polling";
import { go, href, tenantKey, usePlace, type Page, type Place } from "./router";
import { refreshAll, setPaused, useHealth, usePaused } from "./refreshStatus";
import type { ServerClock } from "./liveQueues";
import { mayOperate, reachesEverything, signOut, useSession } from "./session";
import type { Environment, EnvironmentList, Incident, IncidentList, Tenant, Who } from "./apiTypes";
import { likeliest } from "./tenantOptions";
import { Freshness } from "./components/Freshness";
import { PauseIcon, SignOutIcon } from "./components/icons";
import { EmptyNotice, ErrorNotice, LoadingNotice } from "./components/Notice";
import { TenantSwitch } from "./components/TenantSwitch";
import { TitleBar, type Badge } from "./components/TitleBar";
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
const KNOWS_TENANT: readonly Page["name"][] = ["overview", "queues", "queue", "dead", "alerts", "job"];

export function App() {
  const { session, ask, end } = useSession();
  if (session.state === "unknown") return null;
  if (session.state === "signed-out") return <SignInPage onSignedIn={ask} />;
  return <Shell who={session.who} onSignedOut={end} />;
}

function Shell({ who, onSignedOut }: { who: Who | null; onSignedOut: () => void }) {
  const place = usePlace();
  const list = useLive("environments", listEnvironments, ENVIRONMENTS_MS);
  const environments = list.data?.environments ?? null;
  const alerts = useAlerts(place.tenant, who);
  const health = useHealth();
  useDefaultTenant(place, environments);
  useFocusOnPage(place.page);
  useEffect(() => {
    if (health.error?.status === 401) onSignedOut(); // the session is over
  }, [health.error]);

  const needsTenant = KNOWS_TENANT.includes(place.page.name);
  const ready = !needsTenant || place.tenant !== null;
  return (
    <>
      <TitleBar page={place.page} tenant={place.tenant} badges={badges(alerts)}>
        <Side onSignedOut={onSignedOut} />
      </TitleBar>
      <main id="main" class="page" tabIndex={-1}>
        {needsTenant && place.tenant !== null && (
          <TenantSwitch environments={environments ?? []} tenant={place.tenant} onPick={(tenant) => go(hrefOfTenant(place, tenant))} />
        )}
        {health.error !== null && health.error.status !== 401 && (
          <ErrorNotice error={health.error} keepsData={health.receivedAt !== null} onRetry={refreshAll} />
        )}
        {needsTenant && place.page.name !== "queue" && environments?.length === 0 && (
          <EmptyNotice title="No queues yet">A queue appears here with its first job. This page keeps looking.</EmptyNotice>
        )}
        {!ready && environments === null && health.error === null && <LoadingNotice>Looking for queues…</LoadingNotice>}
        {ready && <Content place={place} environments={environments} who={who} alerts={alerts} clock={clockOf(list)} />}
      </main>
    </>
  );
}

interface ContentProps {
  place: Place;
  environments: readonly Environment[] | null;
  who: Who | null;
  alerts: OpenIncidents;
  clock: ServerClock | null;
}

function Content({ place, environments, who, alerts, clock }: ContentProps) {
  const { page, params } = place;
  const operate = mayOperate(who);
  if (page.name === "pipeline") return <PipelinePage />;
  if (page.name === "autoscaler") return <AutoscalerPage tenant={place.tenant} params={params} />;
  if (page.name === "streams") return <StreamsPage params={params} />;
  if (page.name === "nowhere" || place.tenant === null) return <Nowhere tenant={place.tenant} />;
  // Another environment is another page: nothing of the one before may linger.
  const common = { key: tenantKey(place.tenant), tenant: place.tenant, params };
  if (page.name === "queues") return <QueuesPage {...common} />;
  if (page.name === "queue") return <QueuePage {...common} key={`${common.key} ${page.queue}`} queue={page.queue} operate={operate} />;
  if (page.name === "dead") return <DeadPage {...common} operate={operate} />;
  if (page.name === "alerts") return <AlertsPage {...common} {...alerts} who={who} clock={clock} />;
  if (page.name === "job") return <JobPage {...common} key={`${common.key} ${page.id}`} id={page.id} operate={operate} />;
  return <OverviewPage {...common} {...alerts} environments={environments} />;
}

function Side({ onSignedOut }: { onSignedOut: () => void }) {
  const health = useHealth();
  const paused = usePaused();
  const now = useClock();
  return (
    <>
      <Freshness health={health} now={now} paused={paused} />
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

function Nowhere({ tenant }: { tenant: Tenant | null }) {
  useTitle("Not found – Headrace");
  return (
    <EmptyNotice title="There is no such page">
      <a href={href({ name: "overview" }, tenant)}>Go to the overview</a>
    </EmptyNotice>
  );
}

/** The same page of another environment; what named one queue or job there means nothing here. */
function hrefOfTenant(place: Place, tenant: Tenant): string {
  const { page } = place;
  if (page.name === "queue" || page.name === "job") return href({ name: "queues" }, tenant);
  const kept = ["range", "start", "end", "group", "sort", "show"];
  return href(page, tenant, Object.fromEntries([...place.params].filter(([name]) => kept.includes(name))));
}

interface OpenIncidents {
  /** Of the environment. */
  open: Live<IncidentList>;
  /** Of Headrace's own health. */
  health: readonly Incident[];
}

function useAlerts(tenant: Tenant | null, who: Who | null): OpenIncidents {
  const key = tenant === null ? null : `open ${tenantKey(tenant)}`;
  const open = useLive(key, (signal) => (tenant === null ? Promise.reject(new Error("no environment")) : listIncidents(tenant, "open", null, signal)), ALERTS_MS);
  const health = useLive(reachesEverything(who) ? "health" : null, healthIncidents, HEALTH_MS);
  return { open, health: health.data ?? NONE };
}

const NONE: readonly Incident[] = [];

function badges({ open, health }: OpenIncidents): { alerts?: Badge } {
  const all = [...health, ...(open.data?.incidents ?? [])];
  if (all.length === 0) return {};
  const more = open.data !== null && open.data.next !== null;
  return { alerts: { text: `${all.length}${more ? "+" : ""}`, words: openWords(all.length, more), urgent: all.some((each) => each.state === "firing") } };
}

function clockOf({ data, receivedAt }: Live<EnvironmentList>): ServerClock | null {
  return data === null || receivedAt === null ? null : { serverMs: Date.parse(data.timestamp), at: receivedAt };
}

function useDefaultTenant(place: Place, environments: readonly Environment[] | null): void {
  useEffect(() => {
    if (place.tenant !== null || environments === null || !KNOWS_TENANT.includes(place.page.name)) return;
    const tenant = likeliest(environments);
    if (tenant !== null) go(href(place.page, tenant, Object.fromEntries(place.params)), "replace");
  }, [place, environments]);
}

/** After a link was followed the keyboard goes on at the new page, not at the link that is gone. */
function useFocusOnPage(page: Page): void {
  const name = JSON.stringify(page);
  useEffect(() => {
    if (document.activeElement === document.body || document.activeElement === null) document.getElementById("main")?.focus({ preventScroll: true });
  }, [name]);
}
