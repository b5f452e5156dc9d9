/** What an operator may do to an incident that is open. */
import { useState } from "preact/hooks";
import { acknowledgeIncident, resolveIncident } from "../../alertsApi";
import type { Incident } from "../../apiTypes";
import { Dialog } from "../Dialog";

interface Props {
  incident: Incident;
  small?: boolean;
  onDone: () => void;
}

export function IncidentActions({ incident, small = false, onDone }: Props) {
  const [asking, setAsking] = useState<"acknowledge" | "resolve" | null>(null);
  const close = () => {
    setAsking(null);
    onDone();
  };
  const what = incident.queue === null ? incident.rule : `${incident.rule}: ${incident.queue}`;
  const button = `button${small ? " small" : ""}`;
  return (
    <>
      {incident.state === "firing" && (
        <button type="button" class={button} aria-label={`Acknowledge ${what}`} data-testid="acknowledge" onClick={() => setAsking("acknowledge")}>
          Acknowledge
        </button>
      )}
      <button type="button" class={button} aria-label={`Resolve ${what}`} data-testid="resolve" onClick={() => setAsking("resolve")}>
        Resolve
      </button>
      {asking === "acknowledge" && (
        <Dialog title={`Acknowledge “${what}”?`} confirm="Acknowledge" act={(signal) => acknowledgeIncident(incident.id, signal)} onClose={close}>
          Everybody sees that you take care. Nothing else changes: it ends when its condition does.
        </Dialog>
      )}
      {asking === "resolve" && (
        <Dialog title={`Resolve “${what}”?`} confirm="Resolve" act={(signal) => resolveIncident(incident.id, signal)} onClose={close}>
          It ends now, whatever is measured, and whoever was told of it is told so. While its condition is met still, its rule fires again after the cooldown.
        </Dialog>
      )}
    </>
  );
}
