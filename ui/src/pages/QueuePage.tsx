/** One queue: where it stands now, and how it got there. */
import { queueHistory, streamOfQueue } from "../api";
import { exact, formatBytes, formatCount, formatDuration, formatRate, formatShare, UNKNOWN, utcTime } from "../format";
import { ApiError } from "../http";
import { useClock, useLive, useTitle } from "../polling";
import { go, href, queueKey, useSetParams } from "../router";
import { serverNow, troubleOf, useQueues, type Queues } from "../liveQueues";
import { parseRange, rangeKey, rangeLabel, rangeParams, rangeQuery, refreshMs, type Range } from "../range";
import { toFrame, type Frame } from "../chartData";
import type { History, QueueRef, QueueState, Tenant, WatchedStream } from "../apiTypes";
import { troubles, whyWords } from "../streams";
import { ageMs, recentThroughput } from "../totals";
import { Charts, QUEUE_CHARTS } from "../components/chartSpecs";
import { Figure, Figures } from "../components/Stat";
import { EmptyNotice } from "../components/Notice";
import { Provenance } from "../components/HistoryStatus";
import { QueueActions } from "../components/QueueActions";
import { QueueSelect } from "../components/QueueSelect";
import { RangePicker } from "../components/RangePicker";
import { StreamFigures } from "../components/streams/StreamStats";

const STREAM_MS = 5000;
/** Of a stream nobody knows the bytes, and of workers that are not Headrace's not what fails: nothing is drawn, not 0. */
const STREAM_CHARTS = QUEUE_CHARTS.filter(({ id }) => id !== "bytes");
const FOREIGN_CHARTS = STREAM_CHARTS.filter(({ id }) => id !== "failures");

interface Props {
  tenant: Tenant;
  queue: string;
  params: URLSearchParams;
  operate: boolean;
}

export function QueuePage({ tenant, queue, params, operate }: Props) {
  const ref: QueueRef = { ...tenant, queue };
  const range = parseRange(params);
  const setParams = useSetParams();
  const queues = useQueues(tenant);
  const now = useClock();
  const history = useLive(`${queueKey(ref)} ${rangeKey(range)}`, (signal) => loadHistory(ref, range, signal), refreshMs(range));
  const state = queues.data?.byKey.get(queueKey(ref)) ?? null;
  const names = queues.data === null ? [] : [...queues.data.byKey.values()].map((each) => each.queue);
  const absent = queues.data !== null && state === null;
  // A stream that is watched has history as a queue has, and no queue.
  const stream = useLive(absent ? `stream ${queueKey(ref)}` : null, async (signal) => ({ found: await streamOfQueue(ref, signal) }), STREAM_MS);
  const watched = stream.data?.found ?? null;
  const found = history.data;
  const zoom = (next: Range) => setParams(rangeParams(next));
  useTitle(`${state === null ? "" : `${formatCount(state.depth)} · `}${queue} – Headrace`);

  return (
    <>
      <div class="heading">
        <QueueSelect names={names} selected={ref} onSelect={(name) => go(href({ name: "queue", queue: name }, tenant, Object.fromEntries(params)))} />
        <Tags state={state} queues={queues.data} now={now} />
        {watched !== null && <StreamTags stream={watched} tenant={tenant} />}
        {operate && state !== null && <QueueActions state={state} onDone={queues.refresh} />}
      </div>
      {absent && stream.data !== null && watched === null && (
        <EmptyNotice title="This queue holds nothing now">
          It has no jobs, or it does not exist under this name. History that is still kept is shown below.
        </EmptyNotice>
      )}
      {watched !== null && whyWords(watched) !== "" && <EmptyNotice title="Not all is known">{whyWords(watched)}</EmptyNotice>}
      <Figures label="Headline numbers">
        {watched !== null ? <StreamFigures stream={watched} /> : <StateFigures state={state} queues={queues.data} now={now} />}
        <HistoryFigures state={state} history={found?.history ?? null} range={range} failuresKnown={watched === null || watched.counted === true} />
        {watched === null && (
          <Figure name="bytes" label="Payloads" value={state === null ? UNKNOWN : formatBytes(state.bytes)} title={`${exact(state?.bytes ?? null)} bytes`}>
            {state === null ? "both tiers" : `${formatCount(state.scheduled)} scheduled`}
          </Figure>
        )}
      </Figures>
      <div class="controls">
        <h2 class="sr-only">History</h2>
        <RangePicker range={range} onPick={zoom} />
        <p class="quiet hint">Drag over a chart to zoom in; “back” returns.</p>
      </div>
      {found?.history === null ? (
        <EmptyNotice title="No history yet">The pipeline has not reported anything of this queue. It follows within seconds of the first job.</EmptyNotice>
      ) : (
        <Charts specs={watched === null ? QUEUE_CHARTS : watched.counted === true ? STREAM_CHARTS : FOREIGN_CHARTS} frame={found?.frame ?? null} range={range} onZoom={zoom} />
      )}
      <Provenance history={found?.history ?? null} />
    </>
  );
}

interface Loaded {
  /** Null: history knows nothing of it. */
  history: History | null;
  frame: Frame | null;
}

/** The answer and what the charts draw of it, made once per answer; an answer that cannot be drawn is an error like any other. */
async function loadHistory(ref: QueueRef, range: Range, signal: AbortSignal): Promise<Loaded> {
  try {
    const history = await queueHistory(ref, rangeQuery(range, Date.now() / 1000), signal);
    return { history, frame: toFrame(history) };
  } catch (cause) {
    if (cause instanceof ApiError && cause.status === 404) return { history: null, frame: null };
    throw cause;
  }
}

function Tags({ state, queues, now }: { state: QueueState | null; queues: Queues | null; now: number }) {
  if (state === null || queues === null) return null;
  const trouble = troubleOf(state, serverNow(queues, now));
  return (
    <p class="tags" data-testid="tags">
      {trouble !== null && <em class="tag">{trouble}</em>}
      {state.closed && <em class="tag">closed</em>}
      {state.cold_mode && (
        <em class="tag cool" title="New jobs wait in PostgreSQL, behind those that wait there">
          cold mode
        </em>
      )}
    </p>
  );
}

function StreamTags({ stream, tenant }: { stream: WatchedStream; tenant: Tenant }) {
  return (
    <p class="tags" data-testid="stream-tags">
      <em class="tag cool">stream</em>
      {troubles(stream).map((words) => (
        <em key={words} class="tag">
          {words}
        </em>
      ))}
      <a href={href({ name: "streams" }, tenant, { open: queueKey(stream) })}>Its consumers</a>
    </p>
  );
}

function StateFigures({ state, queues, now }: { state: QueueState | null; queues: Queues | null; now: number }) {
  const age = state === null || queues === null ? null : ageMs(state.oldest_at, serverNow(queues, now));
  const limit = state?.limit ?? null;
  return (
    <>
      <Figure name="depth" label="Depth" value={formatCount(state?.depth ?? null)} title={`${exact(state?.depth ?? null)} jobs`}>
        {state === null ? "jobs that wait" : `${formatCount(state.warm)} warm, ${formatCount(state.cold)} cold`}
      </Figure>
      <Figure
        name="oldest"
        label="Oldest"
        value={state !== null && age === null ? "none" : formatDuration(age)}
        title={state?.oldest_at ? `since ${utcTime(Date.parse(state.oldest_at) / 1000)}` : "nothing waits"}
        tone={age !== null && state !== null && state.running === 0 && age > 60_000 ? "warn" : "plain"}
      >
        {state !== null && age === null ? "nothing waits" : "of the waiting jobs"}
      </Figure>
      <Figure
        name="running"
        label="Running"
        value={formatCount(state?.running ?? null)}
        suffix={limit === null ? "" : `/ ${formatCount(limit)}`}
        title={`${exact(state?.running ?? null)} jobs${limit === null ? "" : ` of at most ${exact(limit)}`}`}
      >
        {limit === null ? "no limit" : `${formatShare((state?.running ?? 0) / Math.max(1, limit))} of the limit`}
      </Figure>
    </>
  );
}

interface HistoryFiguresProps {
  state: QueueState | null;
  history: History | null;
  range: Range;
  /** Of workers that are not Headrace's nobody knows what fails. */
  failuresKnown: boolean;
}

function HistoryFigures({ state, history, range, failuresKnown }: HistoryFiguresProps) {
  const throughput = history === null ? null : recentThroughput(history);
  const failures = failuresKnown ? (history?.headline.failure_rate ?? null) : null;
  const wait = history?.percentiles.wait_ms.p95 ?? null;
  return (
    <>
      <Figure name="wait" label="Wait p95" value={formatDuration(wait)} title={wait === null ? "nothing was started" : `${exact(wait)} ms`}>
        {`started, ${rangeLabel(range)}`}
      </Figure>
      <Figure
        name="throughput"
        label="Throughput"
        value={formatRate(throughput)}
        suffix={throughput === null ? "" : "/s"}
        title={`${exact(throughput)} completed per second`}
      >
        {range.kind === "between" ? "completed, its last minute" : "completed, 1 min"}
      </Figure>
      <Figure
        name="failures"
        label="Failure rate"
        value={formatShare(failures)}
        title={!failuresKnown ? "unknown: only Headrace's own workers tell" : failures === null ? "unknown: nothing was started" : `${exact(failures * 100)} %`}
        tone={failures !== null && failures >= 0.05 ? "bad" : "plain"}
      >
        {state !== null && state.dead > 0 ? (
          <a href={href({ name: "dead" }, state, { queue: state.queue })}>{formatCount(state.dead)} dead letters</a>
        ) : !failuresKnown ? (
          "its workers do not tell"
        ) : history !== null && failures === null ? (
          "nothing started"
        ) : (
          `of started, ${rangeLabel(range)}`
        )}
      </Figure>
    </>
  );
}
