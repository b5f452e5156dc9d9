/** Watched streams of all environments within the key's scope: load and consumers of each group. */
import { useMemo } from "preact/hooks";
import { listStreams } from "../api";
import { usePolled, useTitle } from "../polling";
import { queueKey, useSetParams } from "../router";
import { describeSummary, sortByProblem } from "../streams";
import { EmptyNotice, LoadingNotice } from "../components/Notice";
import { StreamTable } from "../components/streams/StreamTable";

const REFRESH_MS = 5000;

export function StreamsPage({ params }: { params: URLSearchParams }) {
  const setParams = useSetParams();
  const { data, error } = usePolled("streams", listStreams, REFRESH_MS);
  const streams = useMemo(() => sortByProblem(data?.streams ?? []), [data]);
  const open = params.get("open");
  useTitle("Streams – Headrace");
  return (
    <>
      <div class="heading">
        <h1>Streams</h1>
        <p class="quiet" data-testid="streams-summary">
          {data === null || data.total === 0 ? "Consumer groups on Redis Streams, as last measured." : describeSummary(streams, data.total)}
        </p>
      </div>
      {data === null && error === null && <LoadingNotice>Loading streams…</LoadingNotice>}
      {data !== null && streams.length === 0 && <NoStreams />}
      {streams.length > 0 && (
        <StreamTable streams={streams} open={open} onToggle={(each) => setParams({ open: open === queueKey(each) ? null : queueKey(each) }, "replace")} />
      )}
    </>
  );
}

function NoStreams() {
  return (
    <EmptyNotice title="No watched streams">
      <code>headrace streams watch --stream browser:jobs --group workers</code> starts watching a stream; its producers and consumers need no change.{" "}
      <code>headrace streams list</code> shows the streams on the server. To watch several, set <code>streams.watch</code>; for streams on another server, set{" "}
      <code>streams.url</code>. A group appears here after its first measurement.
    </EmptyNotice>
  );
}
