/** Summary numbers of a stream as last measured; unknown ones are shown as "unknown". */
import type { WatchedStream } from "../../apiTypes";
import { formatCount, formatDuration, formatExact, UNKNOWN } from "../../format";
import { oldestAgeMs } from "../../streams";
import { Stat } from "../Stat";

export function StreamStats({ stream }: { stream: WatchedStream }) {
  const age = oldestAgeMs(stream);
  const reason = stream.reason ?? "not measured";
  const formatKnown = (value: number | null) => (value === null ? "unknown" : formatCount(value));
  return (
    <>
      <Stat name="depth" label="Load" value={formatKnown(stream.load)} title={stream.load === null ? reason : `${formatExact(stream.load)} entries`}>
        {`${formatKnown(stream.undelivered)} undelivered`}
      </Stat>
      <Stat name="oldest" label="Oldest" value={stream.pending === null ? "unknown" : age === null ? "none" : formatDuration(age)} title={stream.pending === null ? reason : "age of the oldest entry when measured"}>
        oldest unfinished entry
      </Stat>
      <Stat name="running" label="Pending" value={formatKnown(stream.pending)} title={stream.pending === null ? reason : `${formatExact(stream.pending)} entries`} tone={stream.stuck ? "warn" : "plain"}>
        {stream.consumers_total === null ? UNKNOWN : `${formatCount(stream.consumers_total)} consumers${stream.stuck ? `, ${formatCount(stream.stuck)} stuck` : ""}`}
      </Stat>
    </>
  );
}
