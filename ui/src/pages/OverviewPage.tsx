/** Overview of an environment: summary, charts, rankings. */
import { useRef } from "preact/hooks";
import { getEnvironmentHistory, getTopQueues } from "../api";
import type { Environment, History, Incident, IncidentList, Tenant, TopQueues } from "../apiTypes";
import { type ChartData, toChartData } from "../chartData";
import { formatCount, formatDuration, formatExact, formatRate, formatShare, formatUtcTime } from "../format";
import { type HistoryLoader, makeHistoryLoader } from "../history";
import { ApiError } from "../http";
import { type LiveQueues, serverNow, useLiveQueues } from "../liveQueues";
import { type Polled, useClock, usePolled, useTitle } from "../polling";
import { parseRange, type Range, rangeKey, rangeLabel, rangeParams, rangeQuery, refreshIntervalMs } from "../range";
import { tenantKey, useSetParams } from "../router";
import { ageMs, recentThroughput, sumQueues } from "../totals";
import { OpenAlerts } from "../components/alerts/OpenAlerts";
import { Charts, ENVIRONMENT_CHARTS } from "../components/chartSpecs";
import { EnvironmentTable } from "../components/EnvironmentTable";
import { HistoryStatus } from "../components/HistoryStatus";
import { EmptyNotice } from "../components/Notice";
import { RangePicker } from "../components/RangePicker";
import { Ranking } from "../components/Ranking";
import { Sparkline } from "../components/Sparkline";
import { Stat, StatRow } from "../components/Stat";

const RANKINGS_MS = 5000;
const RANKING_PERIOD = "30m";

interface Props {
  tenant: Tenant;
  params: URLSearchParams;
  environments: readonly Environment[] | null;
  open: Polled<IncidentList>;
  health: readonly Incident[];
}

export function OverviewPage({ tenant, params, environments, open, health }: Props) {
  const range = parseRange(params);
  const setParams = useSetParams();
  const loader = useRef(makeHistoryLoader());
  const zoom = (next: Range) => setParams(rangeParams(next));
  const key = tenantKey(tenant);
  const queues = useLiveQueues(tenant);
  const history = usePolled(`environment ${key} ${rangeKey(range)}`, (signal) => loadHistory(loader.current, tenant, range, signal), refreshIntervalMs(range));
  const ranked = usePolled(`top ${key}`, (signal) => loadRankings(tenant, signal), RANKINGS_MS);
  const environment = environments?.find((each) => tenantKey(each) === key) ?? null;
  const loaded = history.data;
  useTitle(`${environment === null ? "" : `${formatCount(environment.depth)} · `}${tenant.org} ${tenant.env} – Headrace`);

  return (
    <>
      <div class="heading">
        <h1>Overview</h1>
        <RangePicker range={range} onPick={zoom} />
      </div>
      <OpenAlerts tenant={tenant} incidents={open.data === null ? null : [...health, ...open.data.incidents]} more={open.data !== null && open.data.next !== null} />
      <EnvironmentStats queues={queues.data} limit={environment?.limit ?? null} history={loaded?.history ?? null} chart={loaded?.chart ?? null} range={range} />
      {loaded?.history === null ? (
        <EmptyNotice title="No history yet">The pipeline has not recorded anything for this environment yet. History appears within seconds of the first job.</EmptyNotice>
      ) : (
        <Charts specs={ENVIRONMENT_CHARTS} chart={loaded?.chart ?? null} range={range} onZoom={zoom} />
      )}
      <div class="rankings">
        <Ranking title="Deepest" note="waiting jobs, now" tenant={tenant} top={ranked.data?.depth ?? null} queues={queues.data} format={formatCount} />
        <Ranking title="Slowest to start" note="wait p95, last 30 min" tenant={tenant} top={ranked.data?.wait ?? null} queues={queues.data} format={formatDuration} />
        <Ranking title="Most failures" note="last 30 min" tenant={tenant} top={ranked.data?.failures ?? null} queues={queues.data} format={formatCount} bad />
      </div>
      {environments !== null && environments.length > 1 && <EnvironmentTable environments={environments} current={tenant} />}
      <HistoryStatus history={loaded?.history ?? null} />
    </>
  );
}

async function loadHistory(load: HistoryLoader, tenant: Tenant, range: Range, signal: AbortSignal): Promise<{ history: History | null; chart: ChartData | null }> {
  try {
    const key = `${tenantKey(tenant)} ${rangeKey(range)}`;
    const history = await load(key, (more) => getEnvironmentHistory(tenant, `${rangeQuery(range, Date.now() / 1000)}${more}`, signal));
    return { history, chart: toChartData(history) };
  } catch (cause) {
    if (cause instanceof ApiError && cause.status === 404) return { history: null, chart: null };
    throw cause;
  }
}

async function loadRankings(tenant: Tenant, signal: AbortSignal): Promise<Record<"depth" | "wait" | "failures", TopQueues>> {
  const [depth, wait, failures] = await Promise.all([
    getTopQueues(tenant, "depth", RANKING_PERIOD, signal),
    getTopQueues(tenant, "wait_p95", RANKING_PERIOD, signal),
    getTopQueues(tenant, "failures", RANKING_PERIOD, signal),
  ]);
  return { depth, wait, failures };
}

interface EnvironmentStatsProps {
  queues: LiveQueues | null;
  limit: number | null;
  history: History | null;
  chart: ChartData | null;
  range: Range;
}

function EnvironmentStats({ queues, limit, history, chart, range }: EnvironmentStatsProps) {
  const clock = useClock();
  const now = queues === null ? null : sumQueues(queues.byKey.values());
  const age = queues === null || now === null ? null : ageMs(now.oldestAt, serverNow(queues, clock));
  const wait = history?.percentiles.wait_ms.p95 ?? null;
  const throughput = history === null ? null : recentThroughput(history);
  const failures = history?.headline.failure_rate ?? null;
  const utilization = now === null || limit === null ? null : now.running / Math.max(1, limit);
  return (
    <StatRow label="Environment summary">
      <Stat
        name="depth"
        label="Depth"
        value={formatCount(now?.depth ?? null)}
        title={`${formatExact(now?.depth ?? null)} jobs`}
        trend={<Sparkline values={chart?.lines.depth.final} colour="--series-depth" />}
      >
        {now === null ? "waiting jobs" : `${formatCount(now.warm)} warm, ${formatCount(now.cold)} cold`}
      </Stat>
      <Stat
        name="oldest"
        label="Oldest"
        value={now !== null && age === null ? "none" : formatDuration(age)}
        title={now?.oldestAt ? `since ${formatUtcTime(Date.parse(now.oldestAt) / 1000)}` : "no waiting jobs"}
      >
        {now !== null && age === null ? "no waiting jobs" : "oldest waiting job"}
      </Stat>
      <Stat
        name="wait"
        label="Wait p95"
        value={formatDuration(wait)}
        title={wait === null ? "no jobs started" : `${formatExact(wait)} ms`}
        trend={<Sparkline values={chart?.lines.waitP95.final} colour="--series-p95" />}
      >
        {`jobs started, ${rangeLabel(range)}`}
      </Stat>
      <Stat
        name="throughput"
        label="Throughput"
        value={formatRate(throughput)}
        suffix={throughput === null ? "" : "/s"}
        title={`${formatExact(throughput)} completed per second`}
        trend={<Sparkline values={chart?.lines.completed.final} colour="--series-out" />}
      >
        completed, last minute
      </Stat>
      <Stat
        name="failures"
        label="Failure rate"
        value={formatShare(failures)}
        title={failures === null ? "unknown: no jobs started" : `${formatExact(failures * 100)} %`}
        tone={failures !== null && failures >= 0.05 ? "bad" : "plain"}
        trend={<Sparkline values={chart?.lines.failureRate.final} colour="--series-bad" />}
      >
        {history !== null && failures === null ? "no jobs started" : `of jobs started, ${rangeLabel(range)}`}
      </Stat>
      <Stat
        name="utilization"
        label={limit === null ? "Running" : "Utilisation"}
        value={limit === null ? formatCount(now?.running ?? null) : formatShare(utilization)}
        title={`${formatExact(now?.running ?? null)} running${limit === null ? "" : `, limit ${formatExact(limit)}`}`}
        trend={<Sparkline values={chart?.lines[limit === null ? "running" : "utilization"].final} colour="--series-running" />}
      >
        {limit === null ? "no limit" : `${formatCount(now?.running ?? null)} of ${formatCount(limit)} running`}
      </Stat>
    </StatRow>
  );
}
