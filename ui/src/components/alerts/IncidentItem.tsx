/** An incident in a list. */
import { chartHref, conditionWords, incidentHref, valueWords } from "../../alerts";
import { exact, formatDuration } from "../../format";
import { useClock } from "../../polling";
import { serverNow, type ServerClock } from "../../liveQueues";
import type { Incident, Tenant } from "../../apiTypes";
import { ageMs } from "../../totals";
import { Item } from "../ListItem";
import { Time } from "../Time";
import { IncidentActions } from "./IncidentActions";
import { SeverityTag } from "./SeverityTag";

interface Props {
  incident: Incident;
  /** Where the page is: incidents of Headrace's own health have no environment. */
  tenant: Tenant;
  clock: ServerClock | null;
  operate: boolean;
  onDone: () => void;
}

export function IncidentItem({ incident, tenant, clock, operate, onDone }: Props) {
  const { condition, queue, resolved_at: resolvedAt } = incident;
  const chart = chartHref(incident, clock?.serverMs ?? Date.now());
  return (
    <Item
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
        <span title={`${condition}; measured: ${exact(incident.value)}`}>
          <strong>{valueWords(condition, incident.value)}</strong> · {conditionWords(condition)}
        </span>
      )}
      <span>
        since <Time iso={incident.fired_at} />
        {resolvedAt === null ? <Lasting since={incident.fired_at} clock={clock} /> : `, ${formatDuration(ageMs(incident.fired_at, Date.parse(resolvedAt)))} long`}
      </span>
      <StateWords incident={incident} />
    </Item>
  );
}

export function StateWords({ incident }: { incident: Incident }) {
  const { state, acknowledged_by: by, reason } = incident;
  const words = state === "acknowledged" ? `acknowledged by ${by ?? "somebody"}` : state === "resolved" ? (reason ?? "resolved by itself") : "firing";
  return (
    <span class={state === "firing" ? "bad" : ""} data-testid="incident-state" data-state={state}>
      {words}
    </span>
  );
}

function Lasting({ since, clock }: { since: string; clock: ServerClock | null }) {
  const now = useClock();
  return clock === null ? null : <>, for {formatDuration(ageMs(since, serverNow(clock, now)))}</>;
}
