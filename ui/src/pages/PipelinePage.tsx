/** Metrics pipeline: its process, memory of Valkey, lag, batch times, losses, gaps, and server events. */
import { getPipeline } from "../api";
import type { PipelineBatch, PipelineHealth } from "../apiTypes";
import { formatCount, formatDuration, formatExact } from "../format";
import { usePolled, useTitle } from "../polling";
import { describeReportProblem } from "../pipeline";
import { EmptyNotice, UnknownNotice } from "../components/Notice";
import { Gaps } from "../components/pipeline/Gaps";
import { ProcessStats } from "../components/pipeline/ProcessStats";
import { ServerEvents } from "../components/pipeline/ServerEvents";
import { ValkeyMemory } from "../components/pipeline/ValkeyMemory";
import { Sparkline } from "../components/Sparkline";
import { Stat, StatRow } from "../components/Stat";
import { Time } from "../components/Time";

const REFRESH_MS = 3000;
const LAG_WARNING_MS = 30_000;
const MAX_SHOWN = 25;

export function PipelinePage() {
  const { data } = usePolled("pipeline", getPipeline, REFRESH_MS);
  useTitle("Pipeline – Headrace");
  return (
    <>
      <div class="heading">
        <h1>Pipeline</h1>
        <p class="quiet">Micro-batches that turn metric events into history, for all tenants.</p>
      </div>
      {data !== null && <UnknownParts health={data} />}
      <PipelineStats health={data} />
      <ProcessStats health={data} />
      {data !== null && <ServerEvents events={data.server_events} />}
      <Gaps gaps={data?.gaps ?? []} />
      <ValkeyMemory servers={data?.valkey ?? null} />
      {data?.batches?.length === 0 ? (
        <EmptyNotice title="No batches yet">The pipeline has not finished a batch. The first one takes about 30 seconds after start-up.</EmptyNotice>
      ) : (
        <BatchTable batches={data?.batches ?? []} />
      )}
    </>
  );
}

function UnknownParts({ health: { unavailable, process } }: { health: PipelineHealth }) {
  const problem = process === null ? "" : describeReportProblem(process);
  return (
    <>
      {unavailable["clickhouse"] && <UnknownNotice title="ClickHouse is unavailable: lag, batches and gaps are unknown">{unavailable["clickhouse"]}</UnknownNotice>}
      {unavailable["valkey"] && <UnknownNotice title="Valkey is unavailable: process, streams and memory are unknown">{unavailable["valkey"]}</UnknownNotice>}
      {problem !== "" && <UnknownNotice title="The state of the pipeline process is not current">{problem}</UnknownNotice>}
    </>
  );
}

function PipelineStats({ health }: { health: PipelineHealth | null }) {
  const hour = health?.last_hour ?? null;
  const lag = health?.lag_ms ?? null;
  const oldestFirst = [...(health?.batches ?? [])].reverse();
  const trend = (colour: `--${string}`, read: (batch: PipelineBatch) => number | null) => <Sparkline values={oldestFirst.map(read)} colour={colour} />;
  const loss = (count: number | undefined) => ((count ?? 0) > 0 ? "bad" : "plain");
  return (
    <StatRow label="Pipeline summary, last hour">
      <Stat name="lag" label="Lag" value={formatDuration(lag)} title={`${formatExact(lag)} ms`} tone={lag !== null && lag > LAG_WARNING_MS ? "warn" : "plain"}>
        {health?.watermark ? (
          <>
            final to <Time iso={health.watermark} />
          </>
        ) : (
          "behind real time"
        )}
      </Stat>
      <Stat name="freshness" label="Freshness p99" value={formatDuration(hour?.freshness_p99_ms ?? null)} title={`${formatExact(hour?.freshness_p99_ms ?? null)} ms from event to readable row`} trend={trend("--series-p99", (batch) => batch.fresh_after_ms)}>
        p50 {formatDuration(hour?.freshness_p50_ms ?? null)}, last hour
      </Stat>
      <Stat name="batch" label="Batch time p99" value={formatDuration(hour?.duration_p99_ms ?? null)} title={`${formatExact(hour?.duration_p99_ms ?? null)} ms`} trend={trend("--series-p95", (batch) => batch.duration_ms)}>
        p50 {formatDuration(hour?.duration_p50_ms ?? null)}, last hour
      </Stat>
      <Stat name="events" label="Events" value={formatCount(hour?.events ?? null)} title={formatExact(hour?.events ?? null)} trend={trend("--series-out", (batch) => batch.events)}>
        {hour === null ? "last hour" : `${formatCount(hour.batches)} batches, 1 h`}
      </Stat>
      <Stat name="lost" label="Lost" value={formatCount(hour?.lost_events ?? null)} title={`${formatExact(hour?.lost_events ?? null)} events`} tone={loss(hour?.lost_events)}>
        missing from history
      </Stat>
      <Stat name="set-aside" label="Unreadable" value={formatCount(hour?.set_aside ?? null)} title={`${formatExact(hour?.set_aside ?? null)} entries`} tone={loss(hour?.set_aside)}>
        not decodable
      </Stat>
      <Stat name="rewinds" label="Rewinds" value={formatCount(hour?.rewinds ?? null)} title={formatExact(hour?.rewinds ?? null)} tone={loss(hour?.rewinds)}>
        Valkey lost data
      </Stat>
    </StatRow>
  );
}

function BatchTable({ batches }: { batches: readonly PipelineBatch[] }) {
  return (
    <section class="card list" aria-labelledby="batches-title">
      <header class="list-head">
        <h2 id="batches-title">Recent batches</h2>
        <span class="quiet">newest first</span>
      </header>
      <table class="table batches" data-testid="batches" data-rows={batches.length}>
        <thead>
          <tr>
            <th scope="col" class="text name">
              Finished
            </th>
            <th scope="col" class="number wide">
              Batch
            </th>
            <th scope="col" class="number">
              Events
            </th>
            <th scope="col" class="number wide">
              Rows
            </th>
            <th scope="col" class="number">
              Duration
            </th>
            <th scope="col" class="number">
              Freshness
            </th>
            <th scope="col" class="number wide" title="Lost events, unreadable entries and rewinds">
              Losses
            </th>
          </tr>
        </thead>
        <tbody>
          {batches.slice(0, MAX_SHOWN).map((batch) => (
            <tr key={`${batch.batch_id} ${batch.finished_at}`}>
              <td class="text name">
                <Time iso={batch.finished_at} />
              </td>
              <td class="number wide">{batch.batch_id}</td>
              <td class="number" title={formatExact(batch.events)}>
                {formatCount(batch.events)}
              </td>
              <td class="number wide" title={formatExact(batch.rows)}>
                {formatCount(batch.rows)}
              </td>
              <td class="number" title={`${formatExact(batch.duration_ms)} ms`}>
                {formatDuration(batch.duration_ms)}
              </td>
              <td class="number" title={`${formatExact(batch.fresh_after_ms)} ms`}>
                {formatDuration(batch.fresh_after_ms)}
              </td>
              <td class="number wide">
                <span class={batch.lost_events + batch.set_aside + batch.rewinds === 0 ? "zero" : "bad"}>
                  {formatCount(batch.lost_events + batch.set_aside + batch.rewinds)}
                </span>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
