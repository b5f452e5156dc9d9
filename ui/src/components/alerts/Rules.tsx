/** What is worth an alert: rules, each with what it watches and whom it tells. */
import { useState } from "preact/hooks";
import { changeRule, removeRule } from "../../alertsApi";
import { describeCondition } from "../../alerts";
import { queueHref } from "../../router";
import type { Channel, Rule, Tenant } from "../../apiTypes";
import { formatExactDuration } from "../../durations";
import { Dialog } from "../Dialog";
import { ListItem } from "../ListItem";
import { EmptyNotice } from "../Notice";
import { SeverityTag } from "./SeverityTag";
import { RuleDialog } from "./RuleDialog";

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
        <span class="quiet">what is worth an alert</span>
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
          A rule watches depth, waits, failures or the oldest job of one queue or of each. <code>headrace alerts apply</code> makes them from a file.
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
          {!rule.enabled && <em class="tag off">switched off</em>}
        </>
      }
      actions={
        operate && (
          <>
            <button type="button" class="toggle" role="switch" aria-checked={rule.enabled} aria-label={`${rule.name} is enabled`} data-testid="switch-rule" onClick={() => setConfirming("switch")} />
            <button type="button" class="button small" aria-label={`Change ${rule.name}`} data-testid="change-rule" onClick={() => setConfirming("change")}>
              Change
            </button>
            <button type="button" class="button small" aria-label={`Remove ${rule.name}`} data-testid="remove-rule" onClick={() => setConfirming("remove")}>
              Remove
            </button>
          </>
        )
      }
    >
      <span title={rule.condition}>{describeCondition(rule.condition)}</span>
      {rule.metric !== "NO_DATA" && (rule.queue === null ? <span>each queue</span> : <a href={queueHref({ ...tenant, queue: rule.queue })}>{rule.queue}</a>)}
      {rule.for_s > 0 && <span>held for {formatExactDuration(rule.for_s * 1000)}</span>}
      <span>cooldown {formatExactDuration(rule.cooldown_s * 1000)}</span>
      {!rule.auto_resolve && <span>ends by hand</span>}
      <span>{describeChannels(rule, channels)}</span>
      {confirming === "change" && <RuleDialog tenant={tenant} rule={rule} channels={channels} onClose={close} />}
      {confirming === "remove" && (
        <Dialog title={`Remove the rule “${rule.name}”?`} confirm="Remove" danger act={(signal) => removeRule(rule.id, signal)} onClose={close}>
          It watches no more, and its open incidents are resolved. Those that are over are kept.
        </Dialog>
      )}
      {confirming === "switch" && (
        <Dialog
          title={rule.enabled ? `Switch “${rule.name}” off?` : `Switch “${rule.name}” on?`}
          confirm={rule.enabled ? "Switch off" : "Switch on"}
          act={(signal) => changeRule(rule.id, { enabled: !rule.enabled }, signal)}
          onClose={close}
        >
          {rule.enabled ? "It watches no more until it is switched on again, and its open incidents are resolved." : "It watches again, with the next round."}
        </Dialog>
      )}
    </ListItem>
  );
}

function describeChannels(rule: Rule, channels: readonly Channel[]): string {
  const names = rule.channels.map((id) => channels.find((channel) => channel.id === id)?.name ?? "a channel that is gone");
  return names.length === 0 ? "tells nobody: seen here only" : `tells ${names.join(", ")}`;
}
