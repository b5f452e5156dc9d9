/** Page heading with the queue name. An invisible select on top of it switches to another queue. */
import type { QueueRef } from "../apiTypes";

interface Props {
  names: readonly string[];
  selected: QueueRef;
  onSelect: (queue: string) => void;
}

export function QueueSelect({ names, selected, onSelect }: Props) {
  const all = names.includes(selected.queue) ? names : [...names, selected.queue];
  return (
    <h1 class="queue-name">
      <span>{selected.queue}</span>
      <select aria-label="Queue" data-testid="queue-select" value={selected.queue} onChange={(event) => onSelect(event.currentTarget.value)}>
        {[...all]
          .sort((a, b) => a.localeCompare(b))
          .map((name) => (
            <option key={name} value={name} selected={name === selected.queue}>
              {name}
            </option>
          ))}
      </select>
    </h1>
  );
}
