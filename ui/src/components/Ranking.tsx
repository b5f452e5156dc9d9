/** Top queues by one metric, with bars for comparison. */
import type { QueueRef, Tenant, TopQueues } from "../apiTypes";
import { formatExact } from "../format";
import { type LiveQueues, queueProblem } from "../liveQueues";
import { queueHref, queueKey } from "../router";

interface Props {
  title: string;
  note: string;
  tenant: Tenant;
  /** Null until the first response. */
  top: TopQueues | null;
  /** Live state, from which the problem tags beside the names are derived. */
  queues: LiveQueues | null;
  format: (value: number) => string;
  bad?: boolean;
}

export function Ranking({ title, note, tenant, top, queues, format, bad = false }: Props) {
  const ranked = top?.queues.filter((queue) => queue.value > 0) ?? [];
  const most = Math.max(...ranked.map((queue) => queue.value), Number.MIN_VALUE);
  return (
    <section class="card ranking" data-testid={`top-${top?.metric ?? "loading"}`}>
      <header>
        <h2>{title}</h2>
        <span class="quiet">{note}</span>
      </header>
      <ol>
        {ranked.map((queue) => (
          <li key={queue.queue}>
            <span class={`bar${bad ? " bad" : ""}`} style={{ width: `calc(${Math.round((100 * queue.value) / most)}% + 16px)` }} aria-hidden="true" />
            <a href={queueHref({ ...tenant, queue: queue.queue })} title={queue.queue}>
              {queue.queue}
            </a>
            <ProblemTag queues={queues} name={{ ...tenant, queue: queue.queue }} />
            <span class="value" title={`${formatExact(queue.value)} ${top?.unit ?? ""}`}>
              {format(queue.value)}
            </span>
          </li>
        ))}
        {top !== null && ranked.length === 0 && <li class="quiet">None</li>}
      </ol>
    </section>
  );
}

function ProblemTag({ queues, name }: { queues: LiveQueues | null; name: QueueRef }) {
  const state = queues?.byKey.get(queueKey(name));
  const problem = state === undefined || queues === null ? null : queueProblem(state, queues.serverMs);
  return problem === null ? null : <em class="tag">{problem}</em>;
}
