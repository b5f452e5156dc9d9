/** Streams that are watched: what each group has yet to do, and who holds it. Of all environments that the key reaches. */
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
          {data === null || data.total === 0 ? "Jobs on plain Redis Streams, as they were last measured." : describeSummary(streams, data.total)}
        </p>
      </div>
      {data === null && error === null && <LoadingNotice>Looking for streams…</LoadingNotice>}
      {data !== null && streams.length === 0 && <NoStreams />}
      {streams.length > 0 && (
        <StreamTable streams={streams} open={open} onToggle={(each) => setParams({ open: open === queueKey(each) ? null : queueKey(each) }, "replace")} />
      )}
    </>
  );
}

function NoStreams() {
  return (
    <EmptyNotice title="No stream is watched">
      <code>headrace streams watch --stream browser:jobs --group workers</code> watches one, whoever fills and reads it; <code>headrace streams list</code> shows
      which there are. For several, set <code>streams.watch</code>; for a server of their own, <code>streams.url</code>. A group appears here with the first look at
      it.
    </EmptyNotice>
  );
}
