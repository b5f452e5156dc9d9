/** Dialog that creates a silence. Every silence has an end. */
import { useState } from "preact/hooks";
import { addSilence } from "../../alertsApi";
import type { Rule, Tenant } from "../../apiTypes";
import { parseDuration } from "../../durations";
import { Dialog } from "../Dialog";
import { Field, SelectField, TextField } from "../Field";
import { QueueField } from "./QueueField";

const LENGTHS: readonly [string, string][] = [
  ["30 min", "30 minutes"],
  ["1 h", "1 hour"],
  ["4 h", "4 hours"],
  ["1 d", "1 day"],
  ["7 d", "7 days"],
  ["until", "until a date…"],
];

interface Props {
  tenant: Tenant;
  rules: readonly Rule[];
  /** Initial rule of the form; "" means all rules. */
  ruleId?: string;
  queue?: string;
  onClose: () => void;
}

export function SilenceDialog({ tenant, rules, ruleId = "", queue: firstQueue = "", onClose }: Props) {
  const [rule, setRule] = useState(rules.some((each) => each.id === ruleId) ? ruleId : "");
  const [queue, setQueue] = useState(firstQueue);
  const [length, setLength] = useState("1 h");
  const [until, setUntil] = useState("");
  const [reason, setReason] = useState("");
  const chosen = length === "until" ? Date.parse(until) : Date.now() + (parseDuration(length) ?? 0);
  return (
    <Dialog
      title="New silence"
      confirm="Create silence"
      disabled={!Number.isFinite(chosen)}
      act={(signal) => addSilence(tenant, { ends_at: new Date(chosen).toISOString(), rule_id: rule === "" ? null : rule, queue: queue === "" ? null : queue, reason: reason.trim() }, signal)}
      onClose={onClose}
    >
      <p class="quiet">
        No notifications are sent for incidents that begin during the silence. They are still recorded; when it ends, notifications are sent for those still open.
      </p>
      <div class="fields">
        <SelectField label="Rule" value={rule} options={[["", "All rules"], ...rules.map(({ id, name }) => [id, name] as const)]} onPick={setRule} testId="field-rule" />
        <QueueField tenant={tenant} value={queue} onInput={setQueue} />
        <SelectField label="Duration" value={length} options={LENGTHS} onPick={setLength} testId="field-length" />
        {length === "until" && (
          <Field label="Ends at">
            <input type="datetime-local" required value={until} data-testid="field-until" onInput={(event) => setUntil(event.currentTarget.value)} />
          </Field>
        )}
        <TextField label="Reason" wide value={reason} onInput={setReason} testId="field-reason" />
      </div>
    </Dialog>
  );
}
