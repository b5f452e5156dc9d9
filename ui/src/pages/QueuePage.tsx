/** One queue: where it stands now, and how it got there. Wires the data to the components; they hold no requests of their own. */
import { useEffect, useState } from "preact/hooks";
import { listQueues, queueMetrics, type QueueRef, type QueueState } from "../api";
import { formatCount } from "../format";
import { queueKey, useView, type Navigate, type View } from "../location";
import { useClock, useLive } from "../live";
import { toFrame } from "../series";
import { signOut } from "../session";
import { Freshness } from "../components/Freshness";
import { Headlines } from "../components/Headlines";
import { EmptyNotice, ErrorNotice, LoadingNotice } from "../components/Notice";
import { QueueSelect } from "../components/QueueSelect";
import { RangePicker } from "../components/RangePicker";
import { Provenance } from "../components/Provenance";
import { DepthChart, ThroughputChart } from "../components/charts";
import { TitleBar } from "../components/TitleBar";

const STATE_REFRESH_MS = 2000;

export function QueuePage({ onSignedOut }: { onSignedOut: () => void }) {
  const [view, navigate] = useView();
  const [paused, setPaused] = useState(false);
  const now = useClock();

  const list = useLive("queues", listQueues, STATE_REFRESH_MS, paused);
  const queues = list.data?.queues ?? null;
  const selected = view.queue;
  useDefaultQueue(view, queues, navigate);

  const history = useLive(
    selected === null ? null : `${queueKey(selected)} ${view.range.id}`,
    (signal) => loadHistory(selected as QueueRef, view.range.id, signal),
    view.range.refreshMs,
    paused,
  );
  const metrics = history.data?.metrics ?? null;
  const frame = history.data?.frame ?? null;

  const state = selected === null ? null : (queues?.find((queue) => queueKey(queue) === queueKey(selected)) ?? null);
  const hasHistory = history.data !== null || history.error === null; // or will have: it is on its way
  const missing = selected !== null && queues !== null && state === null;
  const error = list.error ?? history.error;
  const retry = () => {
    list.refresh();
    history.refresh();
  };
  useDocumentTitle(selected, state);
  useEffect(() => {
    if (error?.status === 401) onSignedOut(); // the session is over
  }, [error?.status]);

  return (
    <>
      <TitleBar>
        <Freshness
          receivedAt={oldest(list.receivedAt, selected === null ? list.receivedAt : history.receivedAt)}
          now={now}
          paused={paused}
          failing={error !== null}
          refreshMs={view.range.refreshMs}
        />
        <button type="button" class="button" aria-label={paused ? "Resume" : "Pause"} data-testid="pause" onClick={() => setPaused(!paused)}>
          <PauseIcon paused={paused} />
          <span>{paused ? "Resume" : "Pause"}</span>
        </button>
        <button type="button" class="button" aria-label="Sign out" data-testid="sign-out" onClick={() => void signOut().then(onSignedOut, onSignedOut)}>
          <SignOutIcon />
          <span>Sign out</span>
        </button>
      </TitleBar>
      <main class="page">
        {queues !== null && queues.length > 0 && (
          <div class="controls">
            <QueueSelect queues={queues} selected={selected} onSelect={(queue) => navigate({ queue })} />
            <RangePicker range={view.range} onPick={(range) => navigate({ range })} />
          </div>
        )}
        {error !== null && <ErrorNotice error={error} keepsData={frame !== null} onRetry={retry} />}
        {queues === null && error === null && <LoadingNotice />}
        {queues !== null && queues.length === 0 && (
          <EmptyNotice title="No queues yet">A queue appears here with its first job. This page keeps looking.</EmptyNotice>
        )}
        {missing && error === null && (
          <EmptyNotice title="This queue holds nothing now">
            It has no jobs, or it does not exist under this name. History that is still kept is shown below; choose another queue above.
          </EmptyNotice>
        )}
        {selected !== null && queues !== null && queues.length > 0 && (
          <>
            {(state !== null || hasHistory) && (
              <Headlines
                state={state}
                serverTime={list.data?.timestamp ?? null}
                metrics={metrics}
                range={view.range}
                loading={history.data === null && history.error === null}
              />
            )}
            {hasHistory && (
              <div class="charts">
                <ThroughputChart frame={frame} range={view.range} />
                <DepthChart frame={frame} range={view.range} />
              </div>
            )}
            <Provenance metrics={metrics} />
          </>
        )}
      </main>
    </>
  );
}

/** The answer and what the charts draw of it, made once per answer; an answer that cannot be drawn is an error like any other. */
async function loadHistory(queue: QueueRef, period: string, signal: AbortSignal) {
  const metrics = await queueMetrics(queue, period, signal);
  return { metrics, frame: toFrame(metrics) };
}

/** Without a queue in the URL, shows the deepest one: the likeliest reason for coming. */
function useDefaultQueue(view: View, queues: QueueState[] | null, navigate: Navigate) {
  useEffect(() => {
    if (view.queue !== null || queues === null) return;
    const deepest = queues.reduce<QueueState | null>((best, queue) => (best === null || queue.depth > best.depth ? queue : best), null);
    if (deepest === null) return;
    const { org, project, env, queue } = deepest;
    navigate({ queue: { org, project, env, queue } }, "replace");
  }, [view.queue, queues, navigate]);
}

/** A pinned tab then tells the depth by itself. */
function useDocumentTitle(selected: QueueRef | null, state: QueueState | null) {
  const title = selected === null ? "Headrace" : `${state === null ? "" : `${formatCount(state.depth)} · `}${selected.queue} – Headrace`;
  useEffect(() => {
    document.title = title;
  }, [title]);
}

function oldest(a: number | null, b: number | null): number | null {
  return a === null || b === null ? null : Math.min(a, b);
}

function PauseIcon({ paused }: { paused: boolean }) {
  return (
    <svg viewBox="0 0 12 12" width="10" height="10" aria-hidden="true" fill="currentColor">
      {paused ? <path d="M2.5 1v10l8-5z" /> : <path d="M2 1h3v10H2zM7 1h3v10H7z" />}
    </svg>
  );
}

function SignOutIcon() {
  return (
    <svg viewBox="0 0 12 12" width="10" height="10" aria-hidden="true" fill="none" stroke="currentColor" stroke-width="1.6">
      <path d="M5 1H1v10h4M4 6h7M8.5 3.5 11 6 8.5 8.5" />
    </svg>
  );
}
