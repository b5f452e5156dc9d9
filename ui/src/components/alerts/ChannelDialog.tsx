/** Dialog that creates a channel. Its URL and secret are sent once and never shown again. */
import { useState } from "preact/hooks";
import { addChannel } from "../../alertsApi";
import type { ChannelType, CreatedChannel, NewChannel, Tenant } from "../../apiTypes";
import { Dialog } from "../Dialog";
import { CheckField, SelectField, TextField } from "../Field";

const TYPES: readonly [ChannelType, string][] = [
  ["slack", "Slack"],
  ["email", "Email"],
  ["webhook", "Webhook"],
  ["apprise", "Apprise"],
];
const URL_HINTS: Record<Exclude<ChannelType, "email">, string> = {
  slack: "https://hooks.slack.com/services/…",
  webhook: "https://example.com/hook",
  apprise: "tgram://…",
};

interface Props {
  tenant: Tenant;
  /** The key has full scope, so it may subscribe the channel to incidents of Headrace itself. */
  fullScope: boolean;
  onCreated: (created: CreatedChannel) => void;
  onClose: () => void;
}

export function ChannelDialog({ tenant, fullScope, onCreated, onClose }: Props) {
  const [name, setName] = useState("");
  const [type, setType] = useState<ChannelType>("slack");
  const [url, setUrl] = useState("");
  const [to, setTo] = useState("");
  const [secret, setSecret] = useState("");
  const [health, setHealth] = useState(false);
  const addresses = to.split(/[\s,;]+/).filter((each) => each !== "");
  const where: Partial<NewChannel> = type === "email" ? { to: addresses } : { url: url.trim(), ...(type === "webhook" && secret !== "" ? { secret } : {}) };
  return (
    <Dialog
      title="New channel"
      confirm="Create channel"
      disabled={name.trim() === "" || (type === "email" ? addresses.length === 0 : url.trim() === "")}
      act={async (signal) => onCreated(await addChannel(tenant, { name: name.trim(), type, health, ...where }, signal))}
      onClose={onClose}
    >
      <div class="fields">
        <TextField label="Name" required value={name} onInput={setName} testId="field-name" />
        <SelectField label="Type" value={type} options={TYPES} onPick={setType} testId="field-type" />
        {type === "email" ? (
          <TextField label="Addresses" wide required placeholder="ops@example.com, ann@example.com" value={to} onInput={setTo} testId="field-to" />
        ) : (
          <TextField label="URL (not shown again)" wide required placeholder={URL_HINTS[type]} value={url} onInput={setUrl} testId="field-url" />
        )}
        {type === "webhook" && <TextField label="Signing secret (leave empty to generate one)" wide value={secret} onInput={setSecret} testId="field-secret" />}
        {fullScope && <CheckField label="Also notify about incidents of Headrace itself" checked={health} onCheck={setHealth} />}
      </div>
    </Dialog>
  );
}
