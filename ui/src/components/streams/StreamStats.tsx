/** The headline numbers of a stream that are measured, not history: none is shown that nobody knows. */
import { exact, formatCount, formatDuration, UNKNOWN } from "../../format";
import type { WatchedStream } from "../../apiTypes";
import { oldestAgeMs } from "../../streams";
import { Figure } from "../Stat";

export function StreamFigures({ stream }: { stream: WatchedStream }) {
  const age = oldestAgeMs(stream);
  const why = stream.reason ?? "not measured";
  const known = (value: number | null) => (value === null ? "unknown" : formatCount(value));
  return (
    <>
      <Figure name="depth" label="To do" value={known(stream.load)} title={stream.load === null ? why : `${exact(stream.load)} entries`}>
        {`${known(stream.undelivered)} undelivered`}
      </Figure>
      <Figure name="oldest" label="Oldest" value={stream.pending === null ? "unknown" : age === null ? "none" : formatDuration(age)} title={stream.pending === null ? why : "since it was added, when it was measured"}>
        of what is not done
      </Figure>
      <Figure name="running" label="Pending" value={known(stream.pending)} title={stream.pending === null ? why : `${exact(stream.pending)} entries`} tone={stream.stuck ? "warn" : "plain"}>
        {stream.consumers_total === null ? UNKNOWN : `${formatCount(stream.consumers_total)} consumers${stream.stuck ? `, ${formatCount(stream.stuck)} stuck` : ""}`}
      </Figure>
    </>
  );
}
