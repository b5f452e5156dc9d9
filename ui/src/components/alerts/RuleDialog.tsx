/** Dialog that creates or edits a rule. The server validates it; its errors appear in the dialog. */
import { useState } from "preact/hooks";
import { addRule, changeRule } from "../../alertsApi";
import type { Channel, Metric, Operator, Percentile, Rule, RuleFields, Severity, Tenant } from "../../apiTypes";
import { parseForm, type RuleForm, toForm, type Unit, UNITS, withoutDeletedChannels } from "../../ruleForm";
import { Dialog } from "../Dialog";
import { CheckField, SelectField, TextField } from "../Field";
import { BacktestPanel } from "./BacktestPanel";
import { QueueField } from "./QueueField";

const METRICS: readonly [Metric, string][] = [
  ["BACKLOG", "Depth: waiting jobs"],
  ["OLDEST_AGE", "Oldest job: age of the longest-waiting job"],
  ["LATENCY", "Wait time: of jobs that were started"],
  ["ERROR_RATE", "Failure rate: failed / started jobs"],
  ["SLO", "Service level objective: share of jobs started in time"],
  ["NO_DATA", "No data: no new events in history"],
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
const EXAMPLES: Record<Unit, string> = { jobs: "1000", span: "5 min", share: "20 %", rate: "1", none: "" };

interface Props {
  tenant: Tenant;
  /** Null creates a new rule. */
  rule: Rule | null;
  channels: readonly Channel[];
  onClose: () => void;
}

export function RuleDialog({ tenant, rule, channels, onClose }: Props) {
  const [form, setForm] = useState(() => toForm(rule && withoutDeletedChannels(rule, channels)));
  const change = (part: Partial<RuleForm>) => setForm((old) => ({ ...old, ...part }));
  const { fields, error } = parseForm(form);
  const unit = UNITS[form.metric];
  const isThresholdBlank = unit !== "none" && form.threshold.trim() === "";
  const blank = form.name.trim() === "" || isThresholdBlank;
  return (
    <Dialog
      title={rule === null ? "New rule" : `Edit “${rule.name}”`}
      confirm={rule === null ? "Create rule" : "Save changes"}
      disabled={fields === null || blank}
      act={async (signal) => {
        if (fields === null) return;
        await (rule === null ? addRule(tenant, fields, signal) : changeRule(rule.id, fields, signal));
      }}
      onClose={onClose}
    >
      <div class="fields">
        <TextField label="Name" wide required value={form.name} onInput={(name) => change({ name })} testId="field-name" />
        <SelectField label="Metric" wide value={form.metric} options={METRICS} onPick={(metric) => change({ metric, ...(metric === "SLO" && form.threshold.trim() === "" ? { threshold: "1" } : {}) })} testId="field-metric" />
        {unit !== "none" && (
          <>
            {form.metric === "LATENCY" && <SelectField label="Statistic" value={form.percentile} options={PERCENTILES} onPick={(percentile) => change({ percentile })} testId="field-percentile" />}
            {form.metric === "SLO" ? (
              <>
                <TextField label="Objective: share of jobs" required value={form.objective} onInput={(objective) => change({ objective })} testId="field-objective" />
                <TextField label="that start within" required value={form.within} onInput={(within) => change({ within })} testId="field-within" />
              </>
            ) : (
              <SelectField label="Fires when the value" value={form.operator} options={OPERATORS} onPick={(operator) => change({ operator })} testId="field-operator" />
            )}
            <TextField label={unit === "rate" ? "Fires when the burn rate is above" : "Threshold"} required placeholder={EXAMPLES[unit]} value={form.threshold} onInput={(threshold) => change({ threshold })} testId="field-threshold" />
            <QueueField tenant={tenant} value={form.queue} onInput={(queue) => change({ queue })} />
          </>
        )}
        <TextField label={unit === "none" ? "No data for" : "Window"} required value={form.window} onInput={(window) => change({ window })} testId="field-window" />
        <TextField label="Must hold for" required value={form.holdFor} onInput={(holdFor) => change({ holdFor })} testId="field-held" />
        <TextField label="Cooldown" required value={form.cooldown} onInput={(cooldown) => change({ cooldown })} testId="field-cooldown" />
        <SelectField label="Severity" value={form.severity} options={SEVERITIES} onPick={(severity) => change({ severity })} testId="field-severity" />
        <CheckField label="Resolve incidents automatically" checked={form.autoResolve} onCheck={(autoResolve) => change({ autoResolve })} />
        <NotifyChannels channels={channels} chosen={form.channels} onChoose={(chosen) => change({ channels: chosen })} />
      </div>
      {error !== null && (
        <p class="quiet" data-testid="wrong">
          {error}
        </p>
      )}
      {fields !== null && !isThresholdBlank && <BacktestPanel key={backtestKey(fields)} tenant={tenant} fields={fields} />}
    </Dialog>
  );
}

/** Key of the fields that matter for a back-test. */
function backtestKey(fields: Partial<RuleFields>): string {
  return JSON.stringify({ ...fields, name: "", severity: "", channels: [] });
}

function NotifyChannels({ channels, chosen, onChoose }: { channels: readonly Channel[]; chosen: readonly string[]; onChoose: (ids: string[]) => void }) {
  return (
    <fieldset class="across notify">
      <legend>Notify</legend>
      {channels.length === 0 && <p class="quiet">No channels yet. Incidents appear only on this page.</p>}
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
