/** An environment at a glance: where it stands, which way it goes, which queues lead. */
import { environmentHistory, topQueues } from "../api";
import { exact, formatCount, formatDuration, formatRate, formatShare, utcTime } from "../format";
import { ApiError } from "../http";
import { useClock, useLive, useTitle, type Live } from "../polling";
import { tenantKey, useSetParams } from "../router";
import { serverNow, useQueues, type Queues } from "../liveQueues";
import { parseRange, rangeKey, rangeLabel, rangeParams, rangeQuery, refreshMs, type Range } from "../range";
import { toFrame, type Frame } from "../chartData";
import type { Environment, History, Incident, IncidentList, Tenant, TopQueues } from "../apiTypes";
import { ageMs, environmentNow, recentThroughput } from "../totals";
import { OpenAlerts } from "../components/alerts/OpenAlerts";
import { Charts, ENVIRONMENT_CHARTS } from "../components/chartSpecs";
import { EnvironmentTable } from "../components/EnvironmentTable";
import { Figure, Figures } from "../components/Stat";
import { EmptyNotice } from "../components/Notice";
import { Provenance } from "../components/HistoryStatus";
import { RangePicker } from "../components/RangePicker";
import { Ranking } from "../components/Ranking";
import { Sparkline } from "../components/Sparkline";

const RANKINGS_MS = 5000;
const RANKING_PERIOD = "30m";

interface Props {
  tenant: Tenant;
  params: URLSearchParams;
  environments: readonly Environment[] | null;
  open: Live<IncidentList>;
  health: readonly Incident[];
}

export function OverviewPage({ tenant, params, environments, open, health }: Props) {
  const range = parseRange(params);
  const setParams = useSetParams();
  const zoom = (next: Range) => setParams(rangeParams(next));
  const key = tenantKey(tenant);
  const queues = useQueues(tenant);
  const history = useLive(`environment ${key} ${rangeKey(range)}`, (signal) => loadHistory(tenant, range, signal), refreshMs(range));
  const ranked = useLive(`top ${key}`, (signal) => loadRankings(tenant, signal), RANKINGS_MS);
  const here = environments?.find((each) => tenantKey(each) === key) ?? null;
  const found = history.data;
  useTitle(`${here === null ? "" : `${formatCount(here.depth)} · `}${tenant.org} ${tenant.env} – Headrace`);

  return (
    <>
      <div class="heading">
        <h1>Overview</h1>
        <RangePicker range={range} onPick={zoom} />
      </div>
      <OpenAlerts tenant={tenant} incidents={open.data === null ? null : [...health, ...open.data.incidents]} more={open.data !== null && open.data.next !== null} />
      <Headlines queues={queues.data} limit={here?.limit ?? null} history={found?.history ?? null} frame={found?.frame ?? null} range={range} />
      {found?.history === null ? (
        <EmptyNotice title="No history yet">The pipeline has not reported anything of this environment. It follows within seconds of the first job.</EmptyNotice>
      ) : (
        <Charts specs={ENVIRONMENT_CHARTS} frame={found?.frame ?? null} range={range} onZoom={zoom} />
      )}
      <div class="rankings">
        <Ranking title="Deepest" note="jobs that wait, now" tenant={tenant} top={ranked.data?.depth ?? null} queues={queues.data} format={formatCount} />
        <Ranking title="Slowest to start" note="wait p95, 30 min" tenant={tenant} top={ranked.data?.wait ?? null} queues={queues.data} format={formatDuration} />
        <Ranking title="Failing most" note="failures, 30 min" tenant={tenant} top={ranked.data?.failures ?? null} queues={queues.data} format={formatCount} bad />
      </div>
      {environments !== null && environments.length > 1 && <EnvironmentTable environments={environments} current={tenant} />}
      <Provenance history={found?.history ?? null} />
    </>
  );
}

async function loadHistory(tenant: Tenant, range: Range, signal: AbortSignal): Promise<{ history: History | null; frame: Frame | null }> {
  try {
    const history = await environmentHistory(tenant, rangeQuery(range, Date.now() / 1000), signal);
    return { history, frame: toFrame(history) };
  } catch (cause) {
    if (cause instanceof ApiError && cause.status === 404) return { history: null, frame: null };
    throw cause;
  }
}

async function loadRankings(tenant: Tenant, signal: AbortSignal): Promise<Record<"depth" | "wait" | "failures", TopQueues>> {
  const [depth, wait, failures] = await Promise.all([
    topQueues(tenant, "depth", RANKING_PERIOD, signal),
    topQueues(tenant, "wait_p95", RANKING_PERIOD, signal),
    topQueues(tenant, "failures", RANKING_PERIOD, signal),
  ]);
  return { depth, wait, failures };
}

interface HeadlineProps {
  queues: Queues | null;
  limit: number | null;
  history: History | null;
  frame: Frame | null;
  range: Range;
}

function Headlines({ queues, limit, history, frame, range }: HeadlineProps) {
  const clock = useClock();
  const now = queues === null ? null : environmentNow(queues.byKey.values());
  const age = queues === null || now === null ? null : ageMs(now.oldestAt, serverNow(queues, clock));
  const wait = history?.percentiles.wait_ms.p95 ?? null;
  const throughput = history === null ? null : recentThroughput(history);
  const failures = history?.headline.failure_rate ?? null;
  const utilization = now === null || limit === null ? null : now.running / Math.max(1, limit);
  return (
    <Figures label="Headline numbers of the environment">
      <Figure
        name="depth"
        label="Depth"
        value={formatCount(now?.depth ?? null)}
        title={`${exact(now?.depth ?? null)} jobs`}
        trend={<Sparkline values={frame?.lines.depth.settled} colour="--series-depth" />}
      >
        {now === null ? "jobs that wait" : `${formatCount(now.warm)} warm, ${formatCount(now.cold)} cold`}
      </Figure>
      <Figure
        name="oldest"
        label="Oldest"
        value={now !== null && age === null ? "none" : formatDuration(age)}
        title={now?.oldestAt ? `since ${utcTime(Date.parse(now.oldestAt) / 1000)}` : "nothing waits"}
      >
        {now !== null && age === null ? "nothing waits" : "of the waiting jobs"}
      </Figure>
      <Figure
        name="wait"
        label="Wait p95"
        value={formatDuration(wait)}
        title={wait === null ? "nothing was started" : `${exact(wait)} ms`}
        trend={<Sparkline values={frame?.lines.waitP95.settled} colour="--series-p95" />}
      >
        {`of started, ${rangeLabel(range)}`}
      </Figure>
      <Figure
        name="throughput"
        label="Throughput"
        value={formatRate(throughput)}
        suffix={throughput === null ? "" : "/s"}
        title={`${exact(throughput)} completed per second`}
        trend={<Sparkline values={frame?.lines.completed.settled} colour="--series-out" />}
      >
        completed, 1 min
      </Figure>
      <Figure
        name="failures"
        label="Failure rate"
        value={formatShare(failures)}
        title={failures === null ? "unknown: nothing was started" : `${exact(failures * 100)} %`}
        tone={failures !== null && failures >= 0.05 ? "bad" : "plain"}
        trend={<Sparkline values={frame?.lines.failureRate.settled} colour="--series-bad" />}
      >
        {history !== null && failures === null ? "nothing started" : `of started, ${rangeLabel(range)}`}
      </Figure>
      <Figure
        name="utilization"
        label={limit === null ? "Running" : "Utilisation"}
        value={limit === null ? formatCount(now?.running ?? null) : formatShare(utilization)}
        title={`${exact(now?.running ?? null)} run${limit === null ? "" : ` of at most ${exact(limit)}`}`}
        trend={<Sparkline values={frame?.lines[limit === null ? "running" : "utilization"].settled} colour="--series-running" />}
      >
        {limit === null ? "no limit" : `${formatCount(now?.running ?? null)} of ${formatCount(limit)} run`}
      </Figure>
    </Figures>
  );
}
