/** Text field for a queue name, with suggestions; empty means every queue. */
import { listQueues } from "../../api";
import type { Tenant } from "../../apiTypes";
import { usePolled } from "../../polling";
import { tenantKey } from "../../router";
import { TextField } from "../Field";

const NAMES_MS = 30_000;

export function QueueField({ tenant, value, onInput }: { tenant: Tenant; value: string; onInput: (queue: string) => void }) {
  const { data } = usePolled(`names ${tenantKey(tenant)}`, (signal) => listQueues(tenant, signal), NAMES_MS);
  return (
    <>
      <TextField label="Queue" placeholder="every queue" value={value} onInput={onInput} list="queue-names" testId="field-queue" />
      <datalist id="queue-names">
        {data?.queues.map(({ queue }) => <option key={queue} value={queue} />)}
      </datalist>
    </>
  );
}
