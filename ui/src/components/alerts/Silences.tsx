/** List of silences: which rules and queues, and until when. */
import { useState } from "preact/hooks";
import { endSilence } from "../../alertsApi";
import type { Rule, Silence, Tenant } from "../../apiTypes";
import { Dialog } from "../Dialog";
import { ListItem } from "../ListItem";
import { EmptyNotice } from "../Notice";
import { Time } from "../Time";
import { SilenceDialog } from "./SilenceDialog";

interface Props {
  tenant: Tenant;
  silences: readonly Silence[];
  rules: readonly Rule[];
  operate: boolean;
  onDone: () => void;
}

export function Silences({ tenant, silences, rules, operate, onDone }: Props) {
  const [creating, setCreating] = useState(false);
  return (
    <section class="card list" aria-labelledby="silences-title">
      <header class="list-head">
        <h2 id="silences-title">Silences</h2>
        <span class="quiet">when notifications are held back</span>
        {operate && (
          <button type="button" class="button small end" data-testid="new-silence" onClick={() => setCreating(true)}>
            New silence
          </button>
        )}
      </header>
      <ul data-testid="silences" data-count={silences.length}>
        {silences.map((silence) => (
          <SilenceItem key={silence.id} silence={silence} rules={rules} operate={operate} onDone={onDone} />
        ))}
      </ul>
      {silences.length === 0 && <EmptyNotice title="No silences">Notifications are sent for every incident. Create a silence to hold them back, for example during a deployment.</EmptyNotice>}
      {creating && (
        <SilenceDialog
          tenant={tenant}
          rules={rules}
          onClose={() => {
            setCreating(false);
            onDone();
          }}
        />
      )}
    </section>
  );
}

function SilenceItem({ silence, rules, operate, onDone }: { silence: Silence; rules: readonly Rule[]; operate: boolean; onDone: () => void }) {
  const [ending, setEnding] = useState(false);
  const rule = silence.rule_id === null ? "All rules" : (rules.find((each) => each.id === silence.rule_id)?.name ?? "A deleted rule");
  const label = `${rule}, ${silence.queue ?? "all queues"}`;
  return (
    <ListItem
      testId="silence"
      title={<span>{label}</span>}
      actions={
        operate && (
          <button type="button" class="button small" aria-label={`End the silence for ${label}`} data-testid="end-silence" onClick={() => setEnding(true)}>
            End now
          </button>
        )
      }
    >
      <span>
        from <Time iso={silence.starts_at} /> until <Time iso={silence.ends_at} />
      </span>
      <span>created by {silence.made_by}</span>
      {silence.reason !== "" && <span>{silence.reason}</span>}
      {ending && (
        <Dialog
          title="End this silence now?"
          confirm="End silence"
          act={(signal) => endSilence(silence.id, signal)}
          onClose={() => {
            setEnding(false);
            onDone();
          }}
        >
          Notifications resume, including for incidents that began during the silence and are still open.
        </Dialog>
      )}
    </ListItem>
  );
}
