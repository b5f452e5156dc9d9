/** Makes a rule, or changes one. What is not possible is told by the server, in the dialog. */
import { useState } from "preact/hooks";
import { addRule, changeRule } from "../../alertsApi";
import { toForm, parseForm, UNITS, withoutDeletedChannels, type RuleForm, type Unit } from "../../ruleForm";
import type { Channel, Metric, Operator, Percentile, Rule, Severity, Tenant } from "../../apiTypes";
import { Dialog } from "../Dialog";
import { CheckField, SelectField, TextField } from "../Field";
import { QueueField } from "./QueueField";

const METRICS: readonly [Metric, string][] = [
  ["BACKLOG", "Depth: jobs that wait"],
  ["OLDEST_AGE", "Oldest job: how long it has waited"],
  ["LATENCY", "Wait: of jobs that were started"],
  ["ERROR_RATE", "Failure rate: failed of started"],
  ["NO_DATA", "Nothing new in history"],
];
const OPERATORS: readonly [Operator, string][] = [
  ["GREATER_THAN", "is above"],
  ["LESS_THAN", "is below"],
];
const PERCENTILES: readonly [Percentile, string][] = [
  ["avg", "mean"],
  ["p50", "p50"],
  ["p90", "p90"],
  ["p95", "p95"],
  ["p99", "p99"],
];
const SEVERITIES: readonly [Severity, string][] = [
  ["info", "info"],
  ["warning", "warning"],
  ["critical", "critical"],
];
const EXAMPLES: Record<Unit, string> = { jobs: "1000", span: "5 min", share: "20 %", none: "" };

interface Props {
  tenant: Tenant;
  /** Null: a new one. */
  rule: Rule | null;
  channels: readonly Channel[];
  onClose: () => void;
}

export function RuleDialog({ tenant, rule, channels, onClose }: Props) {
  const [form, setForm] = useState(() => toForm(rule && withoutDeletedChannels(rule, channels)));
  const change = (part: Partial<RuleForm>) => setForm((old) => ({ ...old, ...part }));
  const { fields, error } = parseForm(form);
  const unit = UNITS[form.metric];
  const blank = form.name.trim() === "" || (unit !== "none" && form.threshold.trim() === "");
  return (
    <Dialog
      title={rule === null ? "New rule" : `Change “${rule.name}”`}
      confirm={rule === null ? "Make the rule" : "Change it"}
      disabled={fields === null || blank}
      act={async (signal) => {
        if (fields === null) return;
        await (rule === null ? addRule(tenant, fields, signal) : changeRule(rule.id, fields, signal));
      }}
      onClose={onClose}
    >
      <div class="fields">
        <TextField label="Name" wide required value={form.name} onInput={(name) => change({ name })} testId="field-name" />
        <SelectField label="What is watched" wide value={form.metric} options={METRICS} onPick={(metric) => change({ metric })} testId="field-metric" />
        {unit !== "none" && (
          <>
            {form.metric === "LATENCY" && <SelectField label="Which" value={form.percentile} options={PERCENTILES} onPick={(percentile) => change({ percentile })} testId="field-percentile" />}
            <SelectField label="Fires when it" value={form.operator} options={OPERATORS} onPick={(operator) => change({ operator })} testId="field-operator" />
            <TextField label="Threshold" required placeholder={EXAMPLES[unit]} value={form.threshold} onInput={(threshold) => change({ threshold })} testId="field-threshold" />
            <QueueField tenant={tenant} value={form.queue} onInput={(queue) => change({ queue })} />
          </>
        )}
        <TextField label={unit === "none" ? "For" : "Within the last"} required value={form.window} onInput={(window) => change({ window })} testId="field-window" />
        <TextField label="Must hold for" required value={form.holdFor} onInput={(holdFor) => change({ holdFor })} testId="field-held" />
        <TextField label="Cooldown" required value={form.cooldown} onInput={(cooldown) => change({ cooldown })} testId="field-cooldown" />
        <SelectField label="Severity" value={form.severity} options={SEVERITIES} onPick={(severity) => change({ severity })} testId="field-severity" />
        <CheckField label="Incidents end by themselves" checked={form.autoResolve} onCheck={(autoResolve) => change({ autoResolve })} />
        <NotifyChannels channels={channels} chosen={form.channels} onChoose={(chosen) => change({ channels: chosen })} />
      </div>
      {error !== null && (
        <p class="quiet" data-testid="wrong">
          {error}
        </p>
      )}
    </Dialog>
  );
}

function NotifyChannels({ channels, chosen, onChoose }: { channels: readonly Channel[]; chosen: readonly string[]; onChoose: (ids: string[]) => void }) {
  return (
    <fieldset class="across notify">
      <legend>Tells</legend>
      {channels.length === 0 && <p class="quiet">Nobody: there are no channels yet. Incidents are seen here.</p>}
      {channels.map(({ id, name, type }) => (
        <CheckField
          key={id}
          label={`${name} (${type})`}
          checked={chosen.includes(id)}
          onCheck={(checked) => onChoose(checked ? [...chosen, id] : chosen.filter((each) => each !== id))}
        />
      ))}
    </fieldset>
  );
}
