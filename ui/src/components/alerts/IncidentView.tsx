/** Page of one incident: its fields, timeline and messages. */
import { useState } from "preact/hooks";
import { buildTimeline, chartHref, describeCondition, formatMetricValue } from "../../alerts";
import { getIncident } from "../../alertsApi";
import type { IncidentDetail, Rule, Tenant } from "../../apiTypes";
import { formatExact, UNKNOWN } from "../../format";
import { ApiError } from "../../http";
import type { ServerClock } from "../../liveQueues";
import { usePolled, useTitle } from "../../polling";
import { href } from "../../router";
import { FieldItem, FieldList } from "../FieldList";
import { EmptyNotice } from "../Notice";
import { Time } from "../Time";
import { Deliveries } from "./Deliveries";
import { IncidentActions } from "./IncidentActions";
import { CurrentValue, IncidentState } from "./IncidentItem";
import { SeverityTag } from "./SeverityTag";
import { SilenceDialog } from "./SilenceDialog";

const REFRESH_MS = 3000;

interface Props {
  tenant: Tenant;
  id: string;
  rules: readonly Rule[] | null;
  clock: ServerClock | null;
  operate: boolean;
  /** Refresh the list of open incidents. */
  onDone: () => void;
}

export function IncidentView({ tenant, id, rules, clock, operate, onDone }: Props) {
  const found = usePolled(`incident ${id}`, (signal) => loadIncident(id, signal), REFRESH_MS);
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
      {found.data?.reason && <EmptyNotice title="Incident not found">{found.data.reason}</EmptyNotice>}
      {incident !== null && <IncidentFields incident={incident} clock={clock} />}
      {incident !== null && <IncidentTimeline incident={incident} />}
      {incident !== null && <Deliveries deliveries={incident.deliveries} />}
    </>
  );
}

async function loadIncident(id: string, signal: AbortSignal): Promise<{ incident: IncidentDetail | null; reason: string }> {
  try {
    return { incident: await getIncident(id, signal), reason: "" };
  } catch (cause) {
    if (cause instanceof ApiError && (cause.status === 404 || cause.status === 400)) return { incident: null, reason: cause.detail };
    throw cause;
  }
}

function IncidentFields({ incident, clock }: { incident: IncidentDetail; clock: ServerClock | null }) {
  const { condition, queue } = incident;
  const chart = chartHref(incident, clock?.serverMs ?? Date.now());
  return (
    <section class="card">
      <FieldList testId="incident-facts">
        <FieldItem label="State">
          <IncidentState incident={incident} />
        </FieldItem>
        <FieldItem label="Queue">{chart === null ? UNKNOWN : <a href={chart}>{queue}</a>}</FieldItem>
        <FieldItem label="Condition">
          <span title={condition ?? ""}>{condition === null ? "Headrace health" : describeCondition(condition)}</span>
        </FieldItem>
        <FieldItem label="Value when fired">
          <span title={formatExact(incident.value)}>{condition === null ? UNKNOWN : formatMetricValue(condition, incident.value)}</span>
        </FieldItem>
        {condition !== null && incident.resolved_at === null && (
          <FieldItem label="Current value">
            <CurrentValue incident={incident} clock={clock} />
          </FieldItem>
        )}
        <FieldItem label="Fired">
          <Time iso={incident.fired_at} />
        </FieldItem>
        <FieldItem label="Resolved">{incident.resolved_at === null ? "not yet" : <Time iso={incident.resolved_at} />}</FieldItem>
      </FieldList>
    </section>
  );
}

function IncidentTimeline({ incident }: { incident: IncidentDetail }) {
  return (
    <section class="card" aria-labelledby="timeline-title">
      <h2 id="timeline-title">Timeline</h2>
      <ol class="timeline" data-testid="story">
        {buildTimeline(incident).map((step) => (
          <li key={step.id}>
            <Time iso={step.at} />
            <span>
              <strong>{step.title}</strong> <span class="quiet">{step.note}</span>
            </span>
          </li>
        ))}
      </ol>
    </section>
  );
}

function SilenceButton({ tenant, incident, rules }: { tenant: Tenant; incident: IncidentDetail; rules: readonly Rule[] }) {
  const [confirming, setConfirming] = useState(false);
  return (
    <>
      <button type="button" class="button" data-testid="silence" onClick={() => setConfirming(true)}>
        Silence
      </button>
      {confirming && <SilenceDialog tenant={tenant} rules={rules} ruleId={incident.rule_id} queue={incident.queue ?? ""} onClose={() => setConfirming(false)} />}
    </>
  );
}
