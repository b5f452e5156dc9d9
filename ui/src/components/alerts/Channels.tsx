/** List of notification channels and their status. Secrets are never shown again. */
import { useState } from "preact/hooks";
import { removeChannel, testChannel } from "../../alertsApi";
import type { Channel, CreatedChannel, Tenant } from "../../apiTypes";
import { formatPlural } from "../../format";
import { toApiError } from "../../http";
import { Dialog } from "../Dialog";
import { ListItem } from "../ListItem";
import { EmptyNotice } from "../Notice";
import { Time } from "../Time";
import { ChannelDialog } from "./ChannelDialog";
import { SecretDialog } from "./SecretDialog";

interface Props {
  tenant: Tenant;
  channels: readonly Channel[];
  operate: boolean;
  administer: boolean;
  fullScope: boolean;
  onDone: () => void;
}

export function Channels({ tenant, channels, operate, administer, fullScope, onDone }: Props) {
  const [creating, setCreating] = useState(false);
  const [created, setCreated] = useState<CreatedChannel | null>(null);
  return (
    <section class="card list" aria-labelledby="channels-title">
      <header class="list-head">
        <h2 id="channels-title">Channels</h2>
        <span class="quiet">where notifications are sent</span>
        {administer && (
          <button type="button" class="button small end" data-testid="new-channel" onClick={() => setCreating(true)}>
            New channel
          </button>
        )}
      </header>
      <ul data-testid="channels" data-count={channels.length}>
        {channels.map((channel) => (
          <ChannelItem key={channel.id} channel={channel} operate={operate} administer={administer} fullScope={fullScope} onDone={onDone} />
        ))}
      </ul>
      {channels.length === 0 && (
        <EmptyNotice title="No channels yet">
          Incidents appear only on this page. {administer ? "Create a channel to notify Slack, email, a webhook or any service that Apprise supports." : "Only an admin key can create channels."}
        </EmptyNotice>
      )}
      {creating && (
        <ChannelDialog
          tenant={tenant}
          fullScope={fullScope}
          onCreated={setCreated}
          onClose={() => {
            setCreating(false);
            onDone();
          }}
        />
      )}
      {!creating && created !== null && created.secret !== null && <SecretDialog name={created.name} secret={created.secret} onClose={() => setCreated(null)} />}
    </section>
  );
}

function ChannelItem({ channel, operate, administer, fullScope, onDone }: Omit<Props, "tenant" | "channels"> & { channel: Channel }) {
  const [removing, setRemoving] = useState(false);
  return (
    <ListItem
      testId="channel"
      faded={!channel.enabled}
      title={
        <>
          <em class="tag cool">{channel.type}</em>
          <span>{channel.name}</span>
          {!channel.enabled && <em class="tag off">disabled</em>}
        </>
      }
      actions={
        <>
          {operate && <TestButton channel={channel} onDone={onDone} />}
          {administer && (fullScope || !channel.health) && (
            <button type="button" class="button small" aria-label={`Remove ${channel.name}`} data-testid="remove-channel" onClick={() => setRemoving(true)}>
              Remove
            </button>
          )}
        </>
      }
    >
      <code>{channel.target}</code>
      {channel.health && <span>also notified about incidents of Headrace itself</span>}
      <span>
        {channel.last_sent_at === null ? (
          "nothing sent yet"
        ) : (
          <>
            last sent <Time iso={channel.last_sent_at} />
          </>
        )}
      </span>
      {channel.failures > 0 && (
        <span class="bad" data-testid="channel-failures">
          {formatPlural(channel.failures, "consecutive failure")}{channel.last_error !== null && `: ${channel.last_error}`}
          {channel.retry_at !== null && (
            <>
              {" "}
              · next attempt <Time iso={channel.retry_at} />
            </>
          )}
        </span>
      )}
      {removing && (
        <Dialog
          title={`Remove channel “${channel.name}”?`}
          confirm="Remove"
          danger
          act={(signal) => removeChannel(channel.id, signal)}
          onClose={() => {
            setRemoving(false);
            onDone();
          }}
        >
          No more notifications are sent there, and unsent messages are dropped. Rules that use the channel keep working without it.
        </Dialog>
      )}
    </ListItem>
  );
}

/** Send a test message the way alerts are sent, and show the outcome. */
function TestButton({ channel, onDone }: { channel: Channel; onDone: () => void }) {
  const [busy, setBusy] = useState(false);
  const [outcome, setOutcome] = useState<{ good: boolean; text: string } | null>(null);
  const test = async () => {
    setBusy(true);
    setOutcome(null);
    try {
      const { delivered, error } = await testChannel(channel.id, new AbortController().signal);
      setOutcome({ good: delivered, text: delivered ? "Test message delivered." : `Not delivered: ${error ?? "reason unknown"}` });
    } catch (cause) {
      const { title, detail } = toApiError(cause);
      setOutcome({ good: false, text: `${title}. ${detail}` });
    }
    setBusy(false);
    onDone();
  };
  return (
    <>
      <span class={`outcome ${outcome?.good === false ? "bad" : "good"}`} role="status" data-testid="test-outcome">
        {busy ? "Sending…" : outcome?.text}
      </span>
      <button type="button" class="button small" disabled={busy} aria-label={`Test ${channel.name}`} data-testid="test-channel" onClick={() => void test()}>
        Test
      </button>
    </>
  );
}
