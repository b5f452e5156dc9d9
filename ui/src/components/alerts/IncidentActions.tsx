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
          Everybody sees that you take care. Nothing else changes: it ends when its condition does.
        </Dialog>
      )}
      {confirming === "resolve" && (
        <Dialog title={`Resolve “${label}”?`} confirm="Resolve" act={(signal) => resolveIncident(incident.id, signal)} onClose={close}>
          It ends now, whatever is measured, and whoever was told of it is told so. While its condition is met still, its rule fires again after the cooldown.
        </Dialog>
      )}
    </>
  );
}
