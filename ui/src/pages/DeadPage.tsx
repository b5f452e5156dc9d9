/** Dead letters: jobs that failed permanently, with their errors and redrive. */
import { useMemo, useState } from "preact/hooks";
import { listDeadJobs } from "../api";
import type { DeadFilter, QueueRef, Tenant } from "../apiTypes";
import { deadFilter, deadQueues, type DeadView, isFiltered, parseDeadView, SINCE } from "../deadLetters";
import { formatCount, formatExact } from "../format";
import { useLiveQueues } from "../liveQueues";
import { uniqueById, useRefreshedPages } from "../pagination";
import { usePolled, useTitle } from "../polling";
import { redriveAll } from "../redrive";
import { tenantKey, useSetParams } from "../router";
import { DeadLetter } from "../components/DeadLetter";
import { Dialog } from "../components/Dialog";
import { MoreButton } from "../components/MoreButton";
import { EmptyNotice } from "../components/Notice";
import { SearchBox } from "../components/SearchBox";

const REFRESH_MS = 5000;

interface Props {
  tenant: Tenant;
  params: URLSearchParams;
  operate: boolean;
}

export function DeadPage({ tenant, params, operate }: Props) {
  const setParams = useSetParams();
  const view = parseDeadView(params);
  const queues = useLiveQueues(tenant);
  const queuesWithDead = useMemo(() => deadQueues(queues.data?.byKey.values() ?? [], view.queue), [queues.data, view.queue]);
  const queue = view.queue ?? queuesWithDead[0]?.queue ?? null;
  const total = queuesWithDead.reduce((sum, each) => sum + each.dead, 0);
  useTitle(`${total > 0 ? `${formatCount(total)} · ` : ""}Dead letters – Headrace`);

  return (
    <>
      <div class="heading">
        <h1>Dead letters</h1>
        <p class="quiet" data-testid="dead-total" title={formatExact(total)}>
          {queues.data === null ? " " : `${formatCount(total)} ${total === 1 ? "job" : "jobs"} that failed permanently`}
        </p>
      </div>
      {queues.data !== null && queuesWithDead.length === 0 && (
        <EmptyNotice title="No dead letters">No job in this environment has failed permanently. Failed jobs have been retried or are waiting for a retry.</EmptyNotice>
      )}
      {queuesWithDead.length > 0 && queue !== null && (
        <>
          <fieldset class="chips" data-testid="dead-queues">
            <legend class="sr-only">Queue</legend>
            {queuesWithDead.map((each) => (
              <label key={each.queue} class={each.queue === queue ? "chosen" : ""}>
                <input type="radio" name="queue" value={each.queue} checked={each.queue === queue} onChange={() => setParams({ queue: each.queue })} />
                <span>{each.queue}</span> <small title={formatExact(each.dead)}>{formatCount(each.dead)}</small>
              </label>
            ))}
          </fieldset>
          <DeadLetterList
            key={`${tenantKey(tenant)} ${queue}`}
            queueRef={{ ...tenant, queue }}
            dead={queuesWithDead.find((each) => each.queue === queue)?.dead ?? 0}
            view={view}
            operate={operate}
          />
        </>
      )}
    </>
  );
}

interface DeadLetterListProps {
  queueRef: QueueRef;
  dead: number;
  view: DeadView;
  operate: boolean;
}

function DeadLetterList({ queueRef, dead, view, operate }: DeadLetterListProps) {
  const setParams = useSetParams();
  const [redriving, setRedriving] = useState(false);
  const key = JSON.stringify([queueRef, view.task, view.error, view.since]);
  const first = usePolled(key, (signal) => listDeadJobs(queueRef, deadFilter(view, Date.now()), null, signal), REFRESH_MS);
  const more = useRefreshedPages(
    `more ${key}`,
    first.data?.next ?? null,
    async (cursor, signal) => {
      const { jobs: items, next } = await listDeadJobs(queueRef, deadFilter(view, Date.now()), cursor, signal);
      return { items, next };
    },
    REFRESH_MS,
  );
  const refresh = () => {
    first.refresh();
    more.refresh();
  };
  const jobs = useMemo(() => uniqueById([...(first.data?.jobs ?? []), ...more.items]), [first.data, more.items]);
  const filtered = isFiltered(view);

  return (
    <section class="card list" aria-label={`Dead letters in ${queueRef.queue}`}>
      <div class="toolbar">
        <SearchBox label="Error contains" placeholder="Error contains" value={view.error} onEnter={(error) => setParams({ error })} testId="dead-error" />
        <SearchBox label="Task (exact name)" placeholder="Task" value={view.task} onEnter={(task) => setParams({ task })} testId="dead-task" small />
        <select class="select" aria-label="Buried within" value={view.since} onChange={(event) => setParams({ since: event.currentTarget.value })}>
          {SINCE.map((each) => (
            <option key={each.id} value={each.id} selected={each.id === view.since}>
              {each.label}
            </option>
          ))}
        </select>
        {operate && jobs.length > 0 && (
          <button type="button" class="button end" data-testid="redrive-all" onClick={() => setRedriving(true)}>
            {filtered ? "Redrive all matching" : "Redrive all"}
          </button>
        )}
      </div>
      <ul class="letters" data-testid="letters" data-count={jobs.length}>
        {jobs.map((job) => (
          <DeadLetter key={job.id} queueRef={queueRef} job={job} operate={operate} onRedriven={refresh} />
        ))}
      </ul>
      {first.data !== null && jobs.length === 0 && (
        <EmptyNotice title={filtered ? "No matches" : "No dead letters"}>
          {filtered ? "Try other search terms or a longer time range." : "This queue has no dead letters."}
        </EmptyNotice>
      )}
      <MoreButton more={more}>Show more</MoreButton>
      {redriving && (
        <Dialog
          title={filtered ? `Redrive the matching dead jobs in “${queueRef.queue}”?` : `Redrive all dead jobs in “${queueRef.queue}”?`}
          confirm={filtered ? "Redrive matching" : `Redrive ${formatCount(dead)}`}
          act={(signal, progress) => redrive(queueRef, deadFilter(view, Date.now()), dead, signal, progress)}
          onClose={() => {
            setRedriving(false);
            refresh();
          }}
        >
          The jobs are queued again with their attempts reset, oldest first. You can stop at any time; jobs already redriven stay queued.
        </Dialog>
      )}
    </section>
  );
}

function redrive(ref: QueueRef, which: DeadFilter, dead: number, signal: AbortSignal, progress: (text: string) => void): Promise<void> {
  return redriveAll(ref, which, signal, (done) => progress(`${formatExact(done)} of ${formatExact(dead)} redriven`));
}
