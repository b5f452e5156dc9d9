/** Table of watched consumer groups; a row expands to its consumers. */
import type { WatchedStream } from "../../apiTypes";
import { formatCount, formatDuration, formatExact, UNKNOWN } from "../../format";
import { useMedia } from "../../polling";
import { queueHref, queueKey } from "../../router";
import { explainProblems, groupProblems, oldestAgeMs } from "../../streams";
import { StreamDetail } from "./StreamDetail";
import { UnknownValue } from "./UnknownValue";

const COLUMNS = 8;
const NARROW_COLUMNS = 3;

interface Props {
  streams: readonly WatchedStream[];
  /** `queueKey` of the expanded group. */
  open: string | null;
  onToggle: (stream: WatchedStream) => void;
}

export function StreamTable({ streams, open, onToggle }: Props) {
  return (
    <section class="card list" aria-label="Watched streams">
      <table class="table streams" data-testid="streams" data-rows={streams.length}>
        <thead>
          <tr>
            <th scope="col" class="text name">
              Stream and group
            </th>
            <th scope="col" class="number undelivered wide">
              Undelivered
            </th>
            <th scope="col" class="number wide">
              Pending
            </th>
            <th scope="col" class="number">
              Load
            </th>
            <th scope="col" class="number oldest">
              Oldest
            </th>
            <th scope="col" class="number wide">
              Consumers
            </th>
            <th scope="col" class="number wide">
              Dead
            </th>
            <th scope="col" class="number wide">
              History
            </th>
          </tr>
        </thead>
        <tbody>
          {streams.map((stream) => (
            <StreamRows key={queueKey(stream)} stream={stream} open={queueKey(stream) === open} onToggle={() => onToggle(stream)} />
          ))}
        </tbody>
      </table>
    </section>
  );
}

function StreamRows({ stream, open, onToggle }: { stream: WatchedStream; open: boolean; onToggle: () => void }) {
  const explanation = explainProblems(stream);
  const columns = useMedia("(max-width: 700px)") ? NARROW_COLUMNS : COLUMNS; // colSpan counts hidden columns too
  return (
    <>
      <tr class={stream.stale ? "faded" : ""} data-testid="stream" data-queue={stream.queue}>
        <td class="text name">
          <NameCell stream={stream} open={open} onToggle={onToggle} />
        </td>
        <Count value={stream.undelivered} reason={stream.reason} description="entries not delivered yet" wide />
        <Count value={stream.pending} reason={stream.reason} description="entries delivered but not acknowledged" wide />
        <Count value={stream.load} reason={stream.reason} description="entries left to process" total />
        <OldestCell stream={stream} />
        <td class="number wide">
          {stream.consumers_total === null ? (
            <UnknownValue reason={stream.reason} />
          ) : (
            <span title={`${formatExact(stream.consumers_total)} consumers, ${formatExact(stream.stuck)} of them stuck`}>
              {formatCount(stream.consumers_total)}
              {stream.stuck !== null && stream.stuck > 0 && <small class="bad"> / {formatCount(stream.stuck)} stuck</small>}
            </span>
          )}
        </td>
        <Count value={stream.dead} reason={stream.reason} description="dead letters (list them with “headrace streams dead”)" wide />
        <td class="number wide">
          <a href={queueHref(stream)} aria-label={`Charts for ${stream.queue}`}>
            Charts
          </a>
        </td>
      </tr>
      {explanation !== "" && (
        <tr class="below">
          <td colSpan={columns} class="explanation quiet" data-testid="why">
            {explanation}
          </td>
        </tr>
      )}
      {open && (
        <tr class="below">
          <td colSpan={columns}>
            <StreamDetail stream={stream} />
          </td>
        </tr>
      )}
    </>
  );
}

function NameCell({ stream, open, onToggle }: { stream: WatchedStream; open: boolean; onToggle: () => void }) {
  return (
    <span class="cell-name">
      <span class="line">
        <button type="button" class="disclosure" aria-expanded={open} data-testid="stream-toggle" onClick={onToggle} title={stream.queue}>
          <span>{stream.stream}</span>
        </button>
        {groupProblems(stream).map((problem) => (
          <em key={problem} class="tag">
            {problem}
          </em>
        ))}
      </span>
      <small>
        {stream.group} · {stream.org} / {stream.project} / {stream.env}
      </small>
    </span>
  );
}

interface CountProps {
  value: number | null;
  reason: string | null;
  description: string;
  wide?: boolean;
  total?: boolean;
}

function Count({ value, reason, description, wide = false, total = false }: CountProps) {
  return (
    <td class={`number${wide ? " wide" : ""}${total ? " total" : ""}`}>
      {value === null ? (
        <UnknownValue reason={reason} />
      ) : (
        <span class={value === 0 ? "zero" : ""} title={`${formatExact(value)} ${description}`}>
          {formatCount(value)}
        </span>
      )}
    </td>
  );
}

function OldestCell({ stream }: { stream: WatchedStream }) {
  const age = oldestAgeMs(stream);
  const parts = `undelivered ${formatDuration(stream.oldest_undelivered_age_ms)}, pending ${formatDuration(stream.oldest_pending_age_ms)}`;
  return (
    <td class="number oldest">
      {stream.pending === null ? (
        <UnknownValue reason={stream.reason} />
      ) : age === null ? (
        <span class="zero" title="no entries left, or entry ids without a timestamp">
          {UNKNOWN}
        </span>
      ) : (
        <span title={`when measured: ${parts}`}>{formatDuration(age)}</span>
      )}
    </td>
  );
}
