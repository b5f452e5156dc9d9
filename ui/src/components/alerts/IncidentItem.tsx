/** List entry of an incident. */
import { chartHref, describeCondition, describeCurrentValue, formatMetricValue, incidentHref } from "../../alerts";
import type { Incident, Tenant } from "../../apiTypes";
import { formatDuration, formatExact } from "../../format";
import { type ServerClock, serverNow } from "../../liveQueues";
import { useClock } from "../../polling";
import { ageMs } from "../../totals";
import { ListItem } from "../ListItem";
import { Time } from "../Time";
import { IncidentActions } from "./IncidentActions";
import { SeverityTag } from "./SeverityTag";

interface Props {
  incident: Incident;
  /** Environment of the page; incidents of Headrace's own health have none. */
  tenant: Tenant;
  clock: ServerClock | null;
  operate: boolean;
  onDone: () => void;
}

export function IncidentItem({ incident, tenant, clock, operate, onDone }: Props) {
  const { condition, queue, resolved_at: resolvedAt } = incident;
  const chart = chartHref(incident, clock?.serverMs ?? Date.now());
  return (
    <ListItem
      testId="incident"
      faded={resolvedAt !== null}
      title={
        <>
          <SeverityTag severity={incident.severity} />
          <a href={incidentHref(tenant, incident.id)}>{incident.rule}</a>
        </>
      }
      actions={operate && resolvedAt === null && <IncidentActions incident={incident} small onDone={onDone} />}
    >
      {chart !== null && <a href={chart}>{queue}</a>}
      {condition !== null && (
        <span title={`${condition}; value: ${formatExact(incident.value)}`}>
          <strong>{formatMetricValue(condition, incident.value)}</strong> · {describeCondition(condition)}
        </span>
      )}
      <CurrentValue incident={incident} clock={clock} />
      <span>
        since <Time iso={incident.fired_at} />
        {resolvedAt === null ? <OngoingDuration since={incident.fired_at} clock={clock} /> : `, lasted ${formatDuration(ageMs(incident.fired_at, Date.parse(resolvedAt)))}`}
      </span>
      <IncidentState incident={incident} />
    </ListItem>
  );
}

export function IncidentState({ incident }: { incident: Incident }) {
  const { state, acknowledged_by: by, reason } = incident;
  const text = state === "acknowledged" ? `acknowledged by ${by ?? "unknown"}` : state === "resolved" ? (reason ?? "resolved automatically") : "firing";
  return (
    <span class={state === "firing" ? "bad" : ""} data-testid="incident-state" data-state={state}>
      {text}
    </span>
  );
}

/** Value of an open incident at the last evaluation; nothing for resolved incidents and those of Headrace's own health. */
export function CurrentValue({ incident, clock }: { incident: Incident; clock: ServerClock | null }) {
  const now = useClock();
  const text = describeCurrentValue(incident, clock === null ? Date.now() : serverNow(clock, now));
  return text === null ? null : (
    <span data-testid="current-value" title={formatExact(incident.current_value)}>
      {text}
    </span>
  );
}

function OngoingDuration({ since, clock }: { since: string; clock: ServerClock | null }) {
  const now = useClock();
  return clock === null ? null : <>, for {formatDuration(ageMs(since, serverNow(clock, now)))}</>;
}
