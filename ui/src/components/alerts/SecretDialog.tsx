/** Dialog that shows a new signing secret, the only time it is shown. */
import { useState } from "preact/hooks";
import { Dialog } from "../Dialog";

export function SecretDialog({ name, secret, onClose }: { name: string; secret: string; onClose: () => void }) {
  const [copied, setCopied] = useState(false);
  return (
    <Dialog title={`Signing secret for “${name}”`} confirm="I have saved it" cancel={null} act={async () => undefined} onClose={onClose}>
      <p>Messages are signed with this secret. Save it now: it is not shown again.</p>
      <p class="secret">
        <code data-testid="secret">{secret}</code>
        <button type="button" class="button small" onClick={() => void navigator.clipboard?.writeText(secret).then(() => setCopied(true))}>
          {copied ? "Copied" : "Copy"}
        </button>
      </p>
    </Dialog>
  );
}
