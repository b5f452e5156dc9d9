/** State of the pipeline process, its spool and its exporter, from Valkey: known also while ClickHouse is unavailable. */
import type { PipelineHealth } from "../../apiTypes";
import { formatBytes, formatCount, formatExact, formatRate, formatShare, UNKNOWN } from "../../format";
import { describeExport, spoolShare, sumStreams } from "../../pipeline";
import { Stat, StatRow } from "../Stat";
import { Time } from "../Time";

const FULL_WARNING = 0.8;

export function ProcessStats({ health }: { health: PipelineHealth | null }) {
  const process = health?.process ?? null;
  const { spool = null, export: sending = null } = process ?? {};
  const exporter = describeExport(process);
  const share = spoolShare(process);
  const streams = health?.streams ?? null;
  const length = sumStreams(streams, (stream) => stream.length);
  const unread = sumStreams(streams, (stream) => stream.unread);
  const nearlyFull = streams?.some((stream) => (stream.length ?? 0) > FULL_WARNING * stream.max_length) ?? false;
  return (
    <StatRow label="Pipeline process, now">
      <Stat name="process" label="Process" value={process?.state ?? UNKNOWN} title={process?.last_error ?? ""} tone={process?.condition !== "fresh" || process.state === "retrying" ? "warn" : "plain"}>
        {process?.reported_at ? (
          <>
            reported <Time iso={process.reported_at} />
          </>
        ) : (
          "not reported"
        )}
      </Stat>
      <Stat name="streams" label="Streams" value={formatCount(length)} title={`${formatExact(length)} entries`} tone={nearlyFull ? "bad" : "plain"}>
        {formatCount(unread)} unread{streams?.[0] && `, max ${formatCount(streams[0].max_length)} per shard`}
      </Stat>
      <Stat name="spool" label="Spool" value={formatBytes(spool?.bytes ?? null)} title={`${formatExact(spool?.bytes ?? null)} bytes`} tone={share !== null && share > FULL_WARNING ? "bad" : "plain"}>
        {formatCount(spool?.records ?? null)} records, {formatShare(share)} full
        {spool?.oldest_at && (
          <>
            , oldest <Time iso={spool.oldest_at} />
          </>
        )}
      </Stat>
      <Stat name="exporter" label="Exporter" value={exporter?.text ?? UNKNOWN} title={sending?.problem ?? ""} tone={exporter?.tone ?? "plain"}>
        breaker {sending?.breaker?.replace("_", "-") ?? "unknown"}
        {sending?.breaker_opened ? `, opened ${formatExact(sending.breaker_opened)}×` : ""}
      </Stat>
      <Stat name="inserts" label="Inserts" value={formatRate(sending?.rows_per_s ?? null)} suffix="rows/s" title={`${formatExact(sending?.rows_per_s ?? null)} rows/s`}>
        {formatBytes(sending?.bytes_per_s ?? null)}/s, last minute
      </Stat>
    </StatRow>
  );
}
