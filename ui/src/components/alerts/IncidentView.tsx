/** One incident: what it is about, and how it came and went. */
import { useState } from "preact/hooks";
import { showIncident } from "../../alertsApi";
import { chartHref, conditionWords, story, valueWords } from "../../alerts";
import { exact, UNKNOWN } from "../../format";
import { ApiError } from "../../http";
import { useLive, useTitle } from "../../polling";
import { href } from "../../router";
import type { ServerClock } from "../../liveQueues";
import type { IncidentDetail, Rule, Tenant } from "../../apiTypes";
import { Fact, Facts } from "../FieldList";
import { EmptyNotice } from "../Notice";
import { Time } from "../Time";
import { Deliveries } from "./Deliveries";
import { IncidentActions } from "./IncidentActions";
import { StateWords } from "./IncidentItem";
import { SeverityTag } from "./SeverityTag";
import { SilenceDialog } from "./SilenceDialog";

const REFRESH_MS = 3000;

interface Props {
  tenant: Tenant;
  id: string;
  rules: readonly Rule[] | null;
  clock: ServerClock | null;
  operate: boolean;
  /** The list of open ones has to be asked again. */
  onDone: () => void;
}

export function IncidentView({ tenant, id, rules, clock, operate, onDone }: Props) {
  const found = useLive(`incident ${id}`, (signal) => load(id, signal), REFRESH_MS);
  const incident = found.data?.incident ?? null;
  useTitle(`${incident === null ? "Alert" : `${incident.state} · ${incident.rule}`} – Headrace`);
  const done = () => {
    found.refresh();
    onDone();
  };
  return (
    <>
      <p class="back">
        <a href={href({ name: "alerts" }, tenant)}>All alerts</a>
      </p>
      <div class="heading">
        <h1>{incident?.rule ?? "Alert"}</h1>
        {incident !== null && <SeverityTag severity={incident.severity} />}
        {incident !== null && operate && incident.resolved_at === null && (
          <div class="actions">
            <IncidentActions incident={incident} onDone={done} />
            {incident.condition !== null && rules !== null && <SilenceButton tenant={tenant} incident={incident} rules={rules} />}
          </div>
        )}
      </div>
      {found.data?.why && <EmptyNotice title="There is no such alert">{found.data.why}</EmptyNotice>}
      {incident !== null && <What incident={incident} clock={clock} />}
      {incident !== null && <Story incident={incident} />}
      {incident !== null && <Deliveries deliveries={incident.deliveries} />}
    </>
  );
}

async function load(id: string, signal: AbortSignal): Promise<{ incident: IncidentDetail | null; why: string }> {
  try {
    return { incident: await showIncident(id, signal), why: "" };
  } catch (cause) {
    if (cause instanceof ApiError && (cause.status === 404 || cause.status === 400)) return { incident: null, why: cause.detail };
    throw cause;
  }
}

function What({ incident, clock }: { incident: IncidentDetail; clock: ServerClock | null }) {
  const { condition, queue } = incident;
  const chart = chartHref(incident, clock?.serverMs ?? Date.now());
  return (
    <section class="card">
      <Facts testId="incident-facts">
        <Fact label="State">
          <StateWords incident={incident} />
        </Fact>
        <Fact label="Queue">{chart === null ? UNKNOWN : <a href={chart}>{queue}</a>}</Fact>
        <Fact label="Condition">
          <span title={condition ?? ""}>{condition === null ? "Headrace's own health" : conditionWords(condition)}</span>
        </Fact>
        <Fact label="Measured when it fired">
          <span title={exact(incident.value)}>{condition === null ? UNKNOWN : valueWords(condition, incident.value)}</span>
        </Fact>
        <Fact label="Fired">
          <Time iso={incident.fired_at} />
        </Fact>
        <Fact label="Resolved">{incident.resolved_at === null ? "not yet" : <Time iso={incident.resolved_at} />}</Fact>
      </Facts>
    </section>
  );
}

function Story({ incident }: { incident: IncidentDetail }) {
  return (
    <section class="card" aria-labelledby="story-title">
      <h2 id="story-title">How it came and went</h2>
      <ol class="story" data-testid="story">
        {story(incident).map((step) => (
          <li key={step.id}>
            <Time iso={step.at} />
            <span>
              <strong>{step.what}</strong> <span class="quiet">{step.note}</span>
            </span>
          </li>
        ))}
      </ol>
    </section>
  );
}

function SilenceButton({ tenant, incident, rules }: { tenant: Tenant; incident: IncidentDetail; rules: readonly Rule[] }) {
  const [asking, setAsking] = useState(false);
  return (
    <>
      <button type="button" class="button" data-testid="silence" onClick={() => setAsking(true)}>
        Silence
      </button>
      {asking && <SilenceDialog tenant={tenant} rules={rules} ruleId={incident.rule_id} queue={incident.queue ?? ""} onClose={() => setAsking(false)} />}
    </>
  );
}
