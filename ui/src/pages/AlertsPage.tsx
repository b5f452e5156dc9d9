/** Alerts: incidents, rules, channels and silences. */
import { ALERT_TABS, type AlertTab, describeOpenCount, parseAlertsView } from "../alerts";
import { listChannels, listRules, listSilences } from "../alertsApi";
import type { Channel, CurrentKey, Incident, IncidentList, Rule, Silence, Tenant } from "../apiTypes";
import type { ServerClock } from "../liveQueues";
import { type Polled, usePolled, useTitle } from "../polling";
import { href, tenantKey } from "../router";
import { canAdminister, canOperate, hasFullScope } from "../session";
import { Channels } from "../components/alerts/Channels";
import { Incidents } from "../components/alerts/Incidents";
import { IncidentView } from "../components/alerts/IncidentView";
import { Rules } from "../components/alerts/Rules";
import { Silences } from "../components/alerts/Silences";

const CONFIG_MS = 10_000;

interface Props {
  tenant: Tenant;
  params: URLSearchParams;
  currentKey: CurrentKey | null;
  open: Polled<IncidentList>;
  health: readonly Incident[];
  clock: ServerClock | null;
}

/** What users configure. */
interface AlertConfig {
  rules: Rule[];
  channels: Channel[];
  silences: Silence[];
}

export function AlertsPage(props: Props) {
  const { tenant, params, currentKey, open, clock } = props;
  const view = parseAlertsView(params);
  const operate = canOperate(currentKey);
  const config = usePolled(`alerts ${tenantKey(tenant)}`, (signal) => loadConfig(tenant, signal), CONFIG_MS);
  const rules = config.data?.rules ?? null;
  if (view.incident !== null) {
    return <IncidentView key={view.incident} tenant={tenant} id={view.incident} rules={rules} clock={clock} operate={operate} onDone={open.refresh} />;
  }
  return <AllAlerts {...props} show={view.show} config={config} operate={operate} />;
}

async function loadConfig(tenant: Tenant, signal: AbortSignal): Promise<AlertConfig> {
  const [rules, channels, silences] = await Promise.all([listRules(tenant, signal), listChannels(tenant, signal), listSilences(tenant, signal)]);
  return { rules, channels, silences };
}

function AllAlerts({ tenant, currentKey, open, health, clock, show, config, operate }: Props & { show: AlertTab; config: Polled<AlertConfig>; operate: boolean }) {
  const count = (open.data?.incidents.length ?? 0) + health.length;
  useTitle(`${count > 0 ? `${count} · ` : ""}Alerts – Headrace`);
  return (
    <>
      <div class="heading">
        <h1>Alerts</h1>
        <p class="quiet" data-testid="alerts-summary">
          {open.data === null ? " " : describeOpenCount(count, open.data.next !== null)}
        </p>
      </div>
      <Tabs tenant={tenant} show={show} config={config.data} />
      {show === "incidents" && <Incidents tenant={tenant} open={open} health={health} rules={config.data?.rules ?? null} clock={clock} operate={operate} />}
      {config.data !== null && (
        <>
          {show === "rules" && <Rules tenant={tenant} rules={config.data.rules} channels={config.data.channels} operate={operate} onDone={config.refresh} />}
          {show === "channels" && <Channels tenant={tenant} channels={config.data.channels} operate={operate} administer={canAdminister(currentKey)} fullScope={hasFullScope(currentKey)} onDone={config.refresh} />}
          {show === "silences" && <Silences tenant={tenant} silences={config.data.silences} rules={config.data.rules} operate={operate} onDone={config.refresh} />}
        </>
      )}
    </>
  );
}

const LABELS: Record<AlertTab, string> = { incidents: "Incidents", rules: "Rules", channels: "Channels", silences: "Silences" };

function Tabs({ tenant, show, config }: { tenant: Tenant; show: AlertTab; config: AlertConfig | null }) {
  return (
    <nav class="chips" aria-label="Alerts">
      {ALERT_TABS.map((name) => (
        <a
          key={name}
          href={href({ name: "alerts" }, tenant, { show: name === "incidents" ? null : name })}
          class={name === show ? "chosen" : ""}
          aria-current={name === show ? "page" : undefined}
          data-testid={`show-${name}`}
        >
          {LABELS[name]}
          {name !== "incidents" && <small>{config?.[name].length ?? " "}</small>}
        </a>
      ))}
    </nav>
  );
}
