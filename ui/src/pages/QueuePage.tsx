/** One queue: live state and history. */
import { useRef } from "preact/hooks";
import { getQueue, getQueueHistory, getStreamForQueue } from "../api";
import type { History, MissingTask, QueueRef, QueueState, Tenant, WatchedStream } from "../apiTypes";
import { type ChartData, toChartData } from "../chartData";
import { formatBytes, formatCount, formatDuration, formatExact, formatRate, formatShare, formatUtcTime, UNKNOWN } from "../format";
import { type HistoryLoader, makeHistoryLoader } from "../history";
import { ApiError } from "../http";
import { type LiveQueues, queueProblem, serverNow, useLiveQueues } from "../liveQueues";
import { useClock, usePolled, useTitle } from "../polling";
import { parseRange, type Range, rangeKey, rangeLabel, rangeParams, rangeQuery, refreshIntervalMs } from "../range";
import { href, navigate, queueKey, useSetParams } from "../router";
import { explainProblems, groupProblems } from "../streams";
import { ageMs, recentThroughput } from "../totals";
import { Charts, QUEUE_CHARTS } from "../components/chartSpecs";
import { HistoryStatus } from "../components/HistoryStatus";
import { EmptyNotice } from "../components/Notice";
import { QueueActions } from "../components/QueueActions";
import { QueueSelect } from "../components/QueueSelect";
import { RangePicker } from "../components/RangePicker";
import { Stat, StatRow } from "../components/Stat";
import { StreamStats } from "../components/streams/StreamStats";
import { Time } from "../components/Time";

const STREAM_MS = 5000;
const MISSING_TASKS_MS = 10_000;
/** The bytes of a stream are unknown, and so are failures unless Headrace workers process it. Such charts are omitted. */
const STREAM_CHARTS = QUEUE_CHARTS.filter(({ id }) => id !== "bytes");
const EXTERNAL_WORKER_CHARTS = STREAM_CHARTS.filter(({ id }) => id !== "failures");

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
  const loader = useRef(makeHistoryLoader());
  const queues = useLiveQueues(tenant);
  const now = useClock();
  const history = usePolled(`${queueKey(ref)} ${rangeKey(range)}`, (signal) => loadHistory(loader.current, ref, range, signal), refreshIntervalMs(range));
  const state = queues.data?.byKey.get(queueKey(ref)) ?? null;
  const names = queues.data === null ? [] : [...queues.data.byKey.values()].map((each) => each.queue);
  const absent = queues.data !== null && state === null;
  // A watched stream has history like a queue, but is not in the list of queues.
  const stream = usePolled(absent ? `stream ${queueKey(ref)}` : null, async (signal) => ({ found: await getStreamForQueue(ref, signal) }), STREAM_MS);
  const watched = stream.data?.found ?? null;
  const missing = usePolled(state === null ? null : `missing tasks ${queueKey(ref)}`, async (signal) => (await getQueue(ref, signal)).missing_tasks, MISSING_TASKS_MS);
  const loaded = history.data;
  const zoom = (next: Range) => setParams(rangeParams(next));
  useTitle(`${state === null ? "" : `${formatCount(state.depth)} · `}${queue} – Headrace`);

  return (
    <>
      <div class="heading">
        <QueueSelect names={names} selected={ref} onSelect={(name) => navigate(href({ name: "queue", queue: name }, tenant, Object.fromEntries(params)))} />
        <Tags state={state} queues={queues.data} now={now} />
        {watched !== null && <StreamTags stream={watched} tenant={tenant} />}
        {operate && state !== null && <QueueActions state={state} onDone={queues.refresh} />}
      </div>
      {absent && stream.data !== null && watched === null && (
        <EmptyNotice title="No live state for this queue">
          It has no jobs, or no queue has this name. Any history still kept is shown below.
        </EmptyNotice>
      )}
      {watched !== null && explainProblems(watched) !== "" && <EmptyNotice title="Incomplete data">{explainProblems(watched)}</EmptyNotice>}
      <MissingTasks tasks={missing.data ?? []} />
      <StatRow label="Queue summary">
        {watched !== null ? <StreamStats stream={watched} /> : <LiveStats state={state} queues={queues.data} now={now} />}
        <HistoryStats state={state} history={loaded?.history ?? null} range={range} failuresKnown={watched === null || watched.counted === true} />
        {watched === null && (
          <Stat name="bytes" label="Payload size" value={state === null ? UNKNOWN : formatBytes(state.bytes)} title={`${formatExact(state?.bytes ?? null)} bytes`}>
            {state === null ? "both tiers" : `${formatCount(state.scheduled)} scheduled`}
          </Stat>
        )}
      </StatRow>
      <div class="controls">
        <h2 class="sr-only">History</h2>
        <RangePicker range={range} onPick={zoom} />
        <p class="quiet hint">Drag across a chart to zoom in. The browser’s Back button zooms out.</p>
      </div>
      {loaded?.history === null ? (
        <EmptyNotice title="No history yet">The pipeline has not recorded anything for this queue yet. History appears within seconds of the first job.</EmptyNotice>
      ) : (
        <Charts specs={watched === null ? QUEUE_CHARTS : watched.counted === true ? STREAM_CHARTS : EXTERNAL_WORKER_CHARTS} chart={loaded?.chart ?? null} range={range} onZoom={zoom} />
      )}
      <HistoryStatus history={loaded?.history ?? null} />
    </>
  );
}

interface Loaded {
  /** Null if there is no history. */
  history: History | null;
  chart: ChartData | null;
}

/** Load history and convert it for the charts once per response. Data that cannot be converted is reported like any other error. */
async function loadHistory(load: HistoryLoader, ref: QueueRef, range: Range, signal: AbortSignal): Promise<Loaded> {
  try {
    const key = `${queueKey(ref)} ${rangeKey(range)}`;
    const history = await load(key, (more) => getQueueHistory(ref, `${rangeQuery(range, Date.now() / 1000)}${more}`, signal));
    return { history, chart: toChartData(history) };
  } catch (cause) {
    if (cause instanceof ApiError && cause.status === 404) return { history: null, chart: null };
    throw cause;
  }
}

function Tags({ state, queues, now }: { state: QueueState | null; queues: LiveQueues | null; now: number }) {
  if (state === null || queues === null) return null;
  const problem = queueProblem(state, serverNow(queues, now));
  return (
    <p class="tags" data-testid="tags">
      {problem !== null && <em class="tag">{problem}</em>}
      {state.closed && <em class="tag">closed</em>}
      {state.cold_mode && (
        <em class="tag cool" title="New jobs go to PostgreSQL, behind the jobs already waiting there">
          cold mode
        </em>
      )}
    </p>
  );
}

function MissingTasks({ tasks }: { tasks: MissingTask[] }) {
  return (
    <>
      {tasks.map((each) => (
        <div key={each.task} class="notice error" role="status" data-testid="missing-task">
          <div>
            <strong>{`No worker has task ${each.task}`}</strong>
            <p>
              Jobs that need it wait. Deferred {formatCount(each.deferrals)} {each.deferrals === 1 ? "time" : "times"} since <Time iso={each.since} />.
            </p>
          </div>
        </div>
      ))}
    </>
  );
}

function StreamTags({ stream, tenant }: { stream: WatchedStream; tenant: Tenant }) {
  return (
    <p class="tags" data-testid="stream-tags">
      <em class="tag cool">stream</em>
      {groupProblems(stream).map((problem) => (
        <em key={problem} class="tag">
          {problem}
        </em>
      ))}
      <a href={href({ name: "streams" }, tenant, { open: queueKey(stream) })}>View consumers</a>
    </p>
  );
}

function LiveStats({ state, queues, now }: { state: QueueState | null; queues: LiveQueues | null; now: number }) {
  const age = state === null || queues === null ? null : ageMs(state.oldest_at, serverNow(queues, now));
  const limit = state?.limit ?? null;
  return (
    <>
      <Stat name="depth" label="Depth" value={formatCount(state?.depth ?? null)} title={`${formatExact(state?.depth ?? null)} jobs`}>
        {state === null ? "waiting jobs" : `${formatCount(state.warm)} warm, ${formatCount(state.cold)} cold`}
      </Stat>
      <Stat
        name="oldest"
        label="Oldest"
        value={state !== null && age === null ? "none" : formatDuration(age)}
        title={state?.oldest_at ? `since ${formatUtcTime(Date.parse(state.oldest_at) / 1000)}` : "no waiting jobs"}
        tone={age !== null && state !== null && state.running === 0 && age > 60_000 ? "warn" : "plain"}
      >
        {state !== null && age === null ? "no waiting jobs" : "oldest waiting job"}
      </Stat>
      <Stat
        name="running"
        label="Running"
        value={formatCount(state?.running ?? null)}
        suffix={limit === null ? "" : `/ ${formatCount(limit)}`}
        title={`${formatExact(state?.running ?? null)} jobs${limit === null ? "" : `, limit ${formatExact(limit)}`}`}
      >
        {limit === null ? "no limit" : `${formatShare((state?.running ?? 0) / Math.max(1, limit))} of limit`}
      </Stat>
    </>
  );
}

interface HistoryStatsProps {
  state: QueueState | null;
  history: History | null;
  range: Range;
  /** False if other workers process the stream: they report no failures. */
  failuresKnown: boolean;
}

function HistoryStats({ state, history, range, failuresKnown }: HistoryStatsProps) {
  const throughput = history === null ? null : recentThroughput(history);
  const failures = failuresKnown ? (history?.headline.failure_rate ?? null) : null;
  const wait = history?.percentiles.wait_ms.p95 ?? null;
  return (
    <>
      <Stat name="wait" label="Wait p95" value={formatDuration(wait)} title={wait === null ? "no jobs started" : `${formatExact(wait)} ms`}>
        {`jobs started, ${rangeLabel(range)}`}
      </Stat>
      <Stat
        name="throughput"
        label="Throughput"
        value={formatRate(throughput)}
        suffix={throughput === null ? "" : "/s"}
        title={`${formatExact(throughput)} completed per second`}
      >
        {range.kind === "between" ? "last minute of range" : "last minute"}
      </Stat>
      <Stat
        name="failures"
        label="Failure rate"
        value={formatShare(failures)}
        title={!failuresKnown ? "unknown: only Headrace workers report failures" : failures === null ? "unknown: no jobs started" : `${formatExact(failures * 100)} %`}
        tone={failures !== null && failures >= 0.05 ? "bad" : "plain"}
      >
        {state !== null && state.dead > 0 ? (
          <a href={href({ name: "dead" }, state, { queue: state.queue })}>{formatCount(state.dead)} dead letters</a>
        ) : !failuresKnown ? (
          "not reported"
        ) : history !== null && failures === null ? (
          "no jobs started"
        ) : (
          `of started, ${rangeLabel(range)}`
        )}
      </Stat>
    </>
  );
}
