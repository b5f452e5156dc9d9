/** List of alert rules, with their conditions and channels. */
import { useState } from "preact/hooks";
import { describeCondition } from "../../alerts";
import { changeRule, removeRule } from "../../alertsApi";
import type { Channel, Rule, Tenant } from "../../apiTypes";
import { formatExactDuration } from "../../durations";
import { queueHref } from "../../router";
import { Dialog } from "../Dialog";
import { ListItem } from "../ListItem";
import { EmptyNotice } from "../Notice";
import { Time } from "../Time";
import { RuleDialog } from "./RuleDialog";
import { SeverityTag } from "./SeverityTag";

interface Props {
  tenant: Tenant;
  rules: readonly Rule[];
  channels: readonly Channel[];
  operate: boolean;
  onDone: () => void;
}

export function Rules({ tenant, rules, channels, operate, onDone }: Props) {
  const [creating, setCreating] = useState(false);
  return (
    <section class="card list" aria-labelledby="rules-title">
      <header class="list-head">
        <h2 id="rules-title">Rules</h2>
        <span class="quiet">conditions that raise an alert</span>
        {operate && (
          <button type="button" class="button small end" data-testid="new-rule" onClick={() => setCreating(true)}>
            New rule
          </button>
        )}
      </header>
      <ul data-testid="rules" data-count={rules.length}>
        {rules.map((rule) => (
          <RuleItem key={rule.id} rule={rule} tenant={tenant} channels={channels} operate={operate} onDone={onDone} />
        ))}
      </ul>
      {rules.length === 0 && (
        <EmptyNotice title="No rules yet">
          A rule watches the depth, wait time, failure rate, oldest job or service level of one queue, or of every queue. <code>headrace alerts apply</code> creates rules from a file.
        </EmptyNotice>
      )}
      {creating && (
        <RuleDialog
          tenant={tenant}
          rule={null}
          channels={channels}
          onClose={() => {
            setCreating(false);
            onDone();
          }}
        />
      )}
    </section>
  );
}

type Confirming = "change" | "remove" | "switch" | null;

function RuleItem({ rule, tenant, channels, operate, onDone }: Omit<Props, "rules"> & { rule: Rule }) {
  const [confirming, setConfirming] = useState<Confirming>(null);
  const close = () => {
    setConfirming(null);
    onDone();
  };
  return (
    <ListItem
      testId="rule"
      faded={!rule.enabled}
      title={
        <>
          <SeverityTag severity={rule.severity} />
          <span>{rule.name}</span>
          {!rule.enabled && <em class="tag off">disabled</em>}
        </>
      }
      actions={
        operate && (
          <>
            <button type="button" class="toggle" role="switch" aria-checked={rule.enabled} aria-label={`Enable ${rule.name}`} data-testid="switch-rule" onClick={() => setConfirming("switch")} />
            <button type="button" class="button small" aria-label={`Edit ${rule.name}`} data-testid="change-rule" onClick={() => setConfirming("change")}>
              Edit
            </button>
            <button type="button" class="button small" aria-label={`Remove ${rule.name}`} data-testid="remove-rule" onClick={() => setConfirming("remove")}>
              Remove
            </button>
          </>
        )
      }
    >
      <span title={rule.condition}>{describeCondition(rule.condition)}</span>
      {rule.metric !== "NO_DATA" && (rule.queue === null ? <span>every queue</span> : <a href={queueHref({ ...tenant, queue: rule.queue })}>{rule.queue}</a>)}
      {rule.for_s > 0 && <span>must hold for {formatExactDuration(rule.for_s * 1000)}</span>}
      <span>cooldown {formatExactDuration(rule.cooldown_s * 1000)}</span>
      {!rule.auto_resolve && <span>resolved manually</span>}
      <span>{describeChannels(rule, channels)}</span>
      <span data-testid="rule-fired">{rule.last_fired_at === null ? "never fired" : <>last fired <Time iso={rule.last_fired_at} /></>}</span>
      <span>
        created <Time iso={rule.created_at} />
        {rule.updated_at !== rule.created_at && (
          <>
            , updated <Time iso={rule.updated_at} />
          </>
        )}
      </span>
      {confirming === "change" && <RuleDialog tenant={tenant} rule={rule} channels={channels} onClose={close} />}
      {confirming === "remove" && (
        <Dialog title={`Remove rule “${rule.name}”?`} confirm="Remove" danger act={(signal) => removeRule(rule.id, signal)} onClose={close}>
          The rule is deleted and its open incidents are resolved. Resolved incidents are kept.
        </Dialog>
      )}
      {confirming === "switch" && (
        <Dialog
          title={rule.enabled ? `Disable “${rule.name}”?` : `Enable “${rule.name}”?`}
          confirm={rule.enabled ? "Disable" : "Enable"}
          act={(signal) => changeRule(rule.id, { enabled: !rule.enabled }, signal)}
          onClose={close}
        >
          {rule.enabled ? "The rule is not evaluated until you enable it again, and its open incidents are resolved." : "The rule is evaluated again from the next round."}
        </Dialog>
      )}
    </ListItem>
  );
}

function describeChannels(rule: Rule, channels: readonly Channel[]): string {
  const names = rule.channels.map((id) => channels.find((channel) => channel.id === id)?.name ?? "a deleted channel");
  return names.length === 0 ? "no notifications" : `notifies ${names.join(", ")}`;
}
