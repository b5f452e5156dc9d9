/** One-line summary of the open alerts of an environment. It is always rendered, so that nothing moves when an alert arrives. */
import { countBySeverity, describeOpenCount, incidentHref, sortBySeverity } from "../../alerts";
import type { Incident, Tenant } from "../../apiTypes";
import { href } from "../../router";
import { SeverityTag } from "./SeverityTag";

const MAX_SHOWN = 3;

interface Props {
  tenant: Tenant;
  /** Null until the first response. */
  incidents: readonly Incident[] | null;
  /** There are more open incidents than listed. */
  more: boolean;
}

export function OpenAlerts({ tenant, incidents, more }: Props) {
  const open = sortBySeverity(incidents ?? []);
  const alerts = href({ name: "alerts" }, tenant);
  return (
    <section class={`open-alerts${open.some((each) => each.state === "firing") ? " firing" : ""}`} aria-label="Open alerts" data-testid="open-alerts" data-count={incidents === null ? "" : open.length}>
      <a class="summary" href={alerts}>
        {incidents === null ? "Alerts" : describeOpenCount(open.length, more)}
      </a>
      {countBySeverity(open).map(({ severity, count }) => (
        <span key={severity} class="severity-count">
          {count} <SeverityTag severity={severity} />
        </span>
      ))}
      <ul>
        {open.slice(0, MAX_SHOWN).map((incident) => (
          <li key={incident.id}>
            <a href={incidentHref(tenant, incident.id)}>
              {incident.rule}
              {incident.queue !== null && `: ${incident.queue}`}
            </a>
          </li>
        ))}
      </ul>
    </section>
  );
}
