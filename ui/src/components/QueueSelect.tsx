import type { QueueRef, QueueState } from "../api";
import { queueKey } from "../location";

interface Props {
  queues: readonly QueueState[];
  selected: QueueRef | null;
  onSelect: (queue: QueueRef) => void;
}

interface Group {
  key: string;
  label: string;
  queues: QueueRef[];
}

/** The browser's own select: every keyboard, screen reader and phone already knows it. */
export function QueueSelect({ queues, selected, onSelect }: Props) {
  const known = selected === null || queues.some((queue) => queueKey(queue) === queueKey(selected));
  const groups = groupByEnvironment(known ? queues : [...queues, selected]);
  return (
    <div class="queue-select">
      {selected !== null && (
        <p class="crumbs" aria-hidden="true">
          <span>{selected.org}</span>
          <span>{selected.project}</span>
          <span>{selected.env}</span>
        </p>
      )}
      <div class="queue-name">
        <span aria-hidden="true">{selected?.queue ?? "Choose a queue"}</span>
        <select
          aria-label="Queue"
          data-testid="queue-select"
          value={selected === null ? "" : queueKey(selected)}
          onChange={(event) => {
            const key = event.currentTarget.value;
            const chosen = groups.flatMap((group) => group.queues).find((queue) => queueKey(queue) === key);
            if (chosen) onSelect({ org: chosen.org, project: chosen.project, env: chosen.env, queue: chosen.queue });
          }}
        >
          {groups.map((group) => (
            <optgroup key={group.key} label={group.label}>
              {group.queues.map((queue) => (
                <option key={queueKey(queue)} value={queueKey(queue)} selected={selected !== null && queueKey(queue) === queueKey(selected)}>
                  {queue.queue}
                </option>
              ))}
            </optgroup>
          ))}
        </select>
      </div>
    </div>
  );
}

/** Sorted, so that the order does not jump while counts change. */
function groupByEnvironment(queues: readonly QueueRef[]): Group[] {
  const groups = new Map<string, Group>();
  for (const ref of queues) {
    const key = JSON.stringify([ref.org, ref.project, ref.env]);
    const group = groups.get(key) ?? { key, label: `${ref.org} / ${ref.project} / ${ref.env}`, queues: [] };
    group.queues.push(ref);
    groups.set(key, group);
  }
  const sorted = [...groups.values()].sort((a, b) => a.label.localeCompare(b.label));
  for (const group of sorted) group.queues.sort((a, b) => a.queue.localeCompare(b.queue));
  return sorted;
}
