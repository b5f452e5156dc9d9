/** Actions of operators on an open incident: acknowledge, resolve. */
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
  const [confirming, setConfirming] = useState<"acknowledge" | "resolve" | null>(null);
  const close = () => {
    setConfirming(null);
    onDone();
  };
  const label = incident.queue === null ? incident.rule : `${incident.rule}: ${incident.queue}`;
  const button = `button${small ? " small" : ""}`;
  return (
    <>
      {incident.state === "firing" && (
        <button type="button" class={button} aria-label={`Acknowledge ${label}`} data-testid="acknowledge" onClick={() => setConfirming("acknowledge")}>
          Acknowledge
        </button>
      )}
      <button type="button" class={button} aria-label={`Resolve ${label}`} data-testid="resolve" onClick={() => setConfirming("resolve")}>
        Resolve
      </button>
      {confirming === "acknowledge" && (
        <Dialog title={`Acknowledge “${label}”?`} confirm="Acknowledge" act={(signal) => acknowledgeIncident(incident.id, signal)} onClose={close}>
          Others see that you are handling it. Nothing else changes: the incident ends when its condition clears.
        </Dialog>
      )}
      {confirming === "resolve" && (
        <Dialog title={`Resolve “${label}”?`} confirm="Resolve" act={(signal) => resolveIncident(incident.id, signal)} onClose={close}>
          The incident ends now, whatever the current value, and the notified channels receive a “resolved” message. If the condition still holds, the rule fires again
          after its cooldown.
        </Dialog>
      )}
    </>
  );
}
