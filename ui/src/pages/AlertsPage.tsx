/** Alerts: what is wrong now and what was, the rules that say so, whom they tell, and what is silenced. */
import { listChannels, listRules, listSilences } from "../alertsApi";
import { openWords, parseAlerts, SHOWN, type Shown } from "../alerts";
import { useLive, useTitle, type Live } from "../polling";
import { href, tenantKey } from "../router";
import type { ServerClock } from "../liveQueues";
import { mayAdminister, mayOperate, reachesEverything } from "../session";
import type { Channel, Incident, IncidentList, Rule, Silence, Tenant, Who } from "../apiTypes";
import { Channels } from "../components/alerts/Channels";
import { Incidents } from "../components/alerts/Incidents";
import { IncidentView } from "../components/alerts/IncidentView";
import { Rules } from "../components/alerts/Rules";
import { Silences } from "../components/alerts/Silences";

const MADE_MS = 10_000;

interface Props {
  tenant: Tenant;
  params: URLSearchParams;
  who: Who | null;
  open: Live<IncidentList>;
  health: readonly Incident[];
  clock: ServerClock | null;
}

/** What people make. */
interface Made {
  rules: Rule[];
  channels: Channel[];
  silences: Silence[];
}

export function AlertsPage(props: Props) {
  const { tenant, params, who, open, clock } = props;
  const view = parseAlerts(params);
  const operate = mayOperate(who);
  const made = useLive(`alerts ${tenantKey(tenant)}`, (signal) => load(tenant, signal), MADE_MS);
  const rules = made.data?.rules ?? null;
  if (view.incident !== null) {
    return <IncidentView key={view.incident} tenant={tenant} id={view.incident} rules={rules} clock={clock} operate={operate} onDone={open.refresh} />;
  }
  return <AllAlerts {...props} show={view.show} made={made} operate={operate} />;
}

async function load(tenant: Tenant, signal: AbortSignal): Promise<Made> {
  const [rules, channels, silences] = await Promise.all([listRules(tenant, signal), listChannels(tenant, signal), listSilences(tenant, signal)]);
  return { rules, channels, silences };
}

function AllAlerts({ tenant, who, open, health, clock, show, made, operate }: Props & { show: Shown; made: Live<Made>; operate: boolean }) {
  const count = (open.data?.incidents.length ?? 0) + health.length;
  useTitle(`${count > 0 ? `${count} · ` : ""}Alerts – Headrace`);
  return (
    <>
      <div class="heading">
        <h1>Alerts</h1>
        <p class="quiet" data-testid="alerts-summary">
          {open.data === null ? " " : openWords(count, open.data.next !== null)}
        </p>
      </div>
      <Tabs tenant={tenant} show={show} made={made.data} />
      {show === "incidents" && <Incidents tenant={tenant} open={open} health={health} rules={made.data?.rules ?? null} clock={clock} operate={operate} />}
      {made.data !== null && (
        <>
          {show === "rules" && <Rules tenant={tenant} rules={made.data.rules} channels={made.data.channels} operate={operate} onDone={made.refresh} />}
          {show === "channels" && <Channels tenant={tenant} channels={made.data.channels} operate={operate} administer={mayAdminister(who)} everywhere={reachesEverything(who)} onDone={made.refresh} />}
          {show === "silences" && <Silences tenant={tenant} silences={made.data.silences} rules={made.data.rules} operate={operate} onDone={made.refresh} />}
        </>
      )}
    </>
  );
}

const LABELS: Record<Shown, string> = { incidents: "Incidents", rules: "Rules", channels: "Channels", silences: "Silences" };

function Tabs({ tenant, show, made }: { tenant: Tenant; show: Shown; made: Made | null }) {
  return (
    <nav class="chips" aria-label="Alerts">
      {SHOWN.map((name) => (
        <a
          key={name}
          href={href({ name: "alerts" }, tenant, { show: name === "incidents" ? null : name })}
          class={name === show ? "chosen" : ""}
          aria-current={name === show ? "page" : undefined}
          data-testid={`show-${name}`}
        >
          {LABELS[name]}
          {name !== "incidents" && <small>{made?.[name].length ?? " "}</small>}
        </a>
      ))}
    </nav>
  );
}
