/** A secret that was made now: this is the only time it is shown. */
import { useState } from "preact/hooks";
import { Dialog } from "../Dialog";

export function SecretDialog({ name, secret, onClose }: { name: string; secret: string; onClose: () => void }) {
  const [copied, setCopied] = useState(false);
  return (
    <Dialog title={`The secret of “${name}”`} confirm="I have kept it" cancel={null} act={async () => undefined} onClose={onClose}>
      <p>Messages are signed with it. Keep it now: it is not shown again.</p>
      <p class="secret">
        <code data-testid="secret">{secret}</code>
        <button type="button" class="button small" onClick={() => void navigator.clipboard?.writeText(secret).then(() => setCopied(true))}>
          {copied ? "Copied" : "Copy"}
        </button>
      </p>
    </Dialog>
  );
}
