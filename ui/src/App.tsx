/** The shell around every page: who looks, which environment, what is fresh. Pages get these and hold the rest themselves. */
import { useEffect } from "preact/hooks";
import { listEnvironments } from "./api";
import { useClock, useLive, useTitle } from "./live";
import { go, href, tenantKey, usePlace, type Page, type Place } from "./place";
import { refreshAll, setPaused, useHealth, usePaused } from "./pulse";
import { mayOperate, signOut, useSession } from "./session";
import type { Environment, Tenant, Who } from "./shapes";
import { likeliest } from "./tenants";
import { Freshness } from "./components/Freshness";
import { PauseIcon, SignOutIcon } from "./components/icons";
import { EmptyNotice, ErrorNotice, LoadingNotice } from "./components/Notice";
import { TenantSwitch } from "./components/TenantSwitch";
import { TitleBar } from "./components/TitleBar";
import { DeadPage } from "./pages/DeadPage";
import { JobPage } from "./pages/JobPage";
import { OverviewPage } from "./pages/OverviewPage";
import { PipelinePage } from "./pages/PipelinePage";
import { QueuePage } from "./pages/QueuePage";
import { QueuesPage } from "./pages/QueuesPage";
import { SignInPage } from "./pages/SignInPage";

const ENVIRONMENTS_MS = 5000;
const KNOWS_TENANT: readonly Page["name"][] = ["overview", "queues", "queue", "dead", "job"];

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
      <TitleBar page={place.page} tenant={place.tenant}>
        <Side onSignedOut={onSignedOut} />
      </TitleBar>
      <main id="main" class="page" tabIndex={-1}>
        {needsTenant && place.tenant !== null && (
          <TenantSwitch environments={environments ?? []} tenant={place.tenant} onPick={(tenant) => go(hrefOfTenant(place, tenant))} />
        )}
        {health.error !== null && health.error.status !== 401 && (
          <ErrorNotice error={health.error} keepsData={health.receivedAt !== null} onRetry={refreshAll} />
        )}
        {needsTenant && environments?.length === 0 && (
          <EmptyNotice title="No queues yet">A queue appears here with its first job. This page keeps looking.</EmptyNotice>
        )}
        {!ready && environments === null && health.error === null && <LoadingNotice>Looking for queues…</LoadingNotice>}
        {ready && <Content place={place} environments={environments} who={who} />}
      </main>
    </>
  );
}

interface ContentProps {
  place: Place;
  environments: readonly Environment[] | null;
  who: Who | null;
}

function Content({ place, environments, who }: ContentProps) {
  const { page, params } = place;
  const operate = mayOperate(who);
  if (page.name === "pipeline") return <PipelinePage />;
  if (page.name === "nowhere" || place.tenant === null) return <Nowhere tenant={place.tenant} />;
  // Another environment is another page: nothing of the one before may linger.
  const common = { key: tenantKey(place.tenant), tenant: place.tenant, params };
  if (page.name === "queues") return <QueuesPage {...common} />;
  if (page.name === "queue") return <QueuePage {...common} key={`${common.key} ${page.queue}`} queue={page.queue} operate={operate} />;
  if (page.name === "dead") return <DeadPage {...common} operate={operate} />;
  if (page.name === "job") return <JobPage {...common} key={`${common.key} ${page.id}`} id={page.id} operate={operate} />;
  return <OverviewPage {...common} environments={environments} />;
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
  const kept = ["range", "start", "end", "group", "sort"];
  return href(page, tenant, Object.fromEntries([...place.params].filter(([name]) => kept.includes(name))));
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
