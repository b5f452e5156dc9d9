/** Open incidents, then resolved ones. */
import { sortBySeverity } from "../../alerts";
import { listIncidents } from "../../alertsApi";
import type { Incident, IncidentList, Rule, Tenant } from "../../apiTypes";
import type { ServerClock } from "../../liveQueues";
import { uniqueById, usePages, useRefreshedPages } from "../../pagination";
import { type Polled, usePolled } from "../../polling";
import { href, tenantKey } from "../../router";
import { MoreButton } from "../MoreButton";
import { EmptyNotice } from "../Notice";
import { IncidentItem } from "./IncidentItem";

const OLDER_MS = 10_000;
const RESOLVED_MS = 10_000;

interface Props {
  tenant: Tenant;
  open: Polled<IncidentList>;
  /** Open incidents of Headrace's own health. */
  health: readonly Incident[];
  rules: readonly Rule[] | null;
  clock: ServerClock | null;
  operate: boolean;
}

export function Incidents(props: Props) {
  return (
    <>
      <OpenIncidents {...props} />
      <ResolvedIncidents {...props} />
    </>
  );
}

function OpenIncidents({ tenant, open, health, rules, clock, operate }: Props) {
  const more = useRefreshedPages(`older ${tenantKey(tenant)}`, open.data?.next ?? null, (cursor, signal) => loadPage(tenant, "open", cursor, signal), OLDER_MS);
  const incidents = sortBySeverity(uniqueById([...health, ...(open.data?.incidents ?? []), ...more.items]));
  const done = () => {
    open.refresh();
    more.refresh();
  };
  return (
    <section class="card list" aria-labelledby="open-title">
      <header class="list-head">
        <h2 id="open-title">Open</h2>
        <span class="quiet">most severe first</span>
      </header>
      <ul data-testid="open-incidents" data-count={incidents.length}>
        {incidents.map((incident) => (
          <IncidentItem key={incident.id} incident={incident} tenant={tenant} clock={clock} operate={operate} onDone={done} />
        ))}
      </ul>
      {open.data !== null && rules !== null && incidents.length === 0 && <NoOpenIncidents tenant={tenant} rules={rules} />}
      <MoreButton more={more}>Show older</MoreButton>
    </section>
  );
}

function NoOpenIncidents({ tenant, rules }: { tenant: Tenant; rules: readonly Rule[] }) {
  const enabled = rules.filter((rule) => rule.enabled).length;
  if (enabled > 0) return <EmptyNotice title="No open incidents">{`${enabled === 1 ? "1 rule is" : `${enabled} rules are`} enabled in this environment; none is firing.`}</EmptyNotice>;
  return (
    <EmptyNotice title="No rules enabled">
      No alert rule is enabled in this environment. Add or enable one under <a href={href({ name: "alerts" }, tenant, { show: "rules" })}>Rules</a>.
    </EmptyNotice>
  );
}

function ResolvedIncidents({ tenant, clock }: Props) {
  const key = `resolved ${tenantKey(tenant)}`;
  const first = usePolled(key, (signal) => listIncidents(tenant, "resolved", null, signal), RESOLVED_MS);
  const newest = first.data?.incidents ?? [];
  const more = usePages(key, first.data?.next ?? null, (cursor, signal) => loadPage(tenant, "resolved", cursor, signal), newest);
  const incidents = uniqueById([...newest, ...more.items]);
  return (
    <section class="card list" aria-labelledby="resolved-title">
      <header class="list-head">
        <h2 id="resolved-title">Resolved</h2>
        <span class="quiet">newest first</span>
      </header>
      <ul data-testid="resolved-incidents" data-count={incidents.length}>
        {incidents.map((incident) => (
          <IncidentItem key={incident.id} incident={incident} tenant={tenant} clock={clock} operate={false} onDone={first.refresh} />
        ))}
      </ul>
      {first.data !== null && incidents.length === 0 && <p class="quiet list-note">No resolved incidents within the retention period.</p>}
      <MoreButton more={more}>Show older</MoreButton>
    </section>
  );
}

async function loadPage(tenant: Tenant, state: "open" | "resolved", cursor: string | null, signal: AbortSignal) {
  const { incidents: items, next } = await listIncidents(tenant, state, cursor, signal);
  return { items, next };
}
