/** Details of a consumer group: exact numbers, and its consumers, stuck ones first. */
import type { StreamConsumer, WatchedStream } from "../../apiTypes";
import { formatDuration, formatExact } from "../../format";
import { queueHref } from "../../router";
import { describeDeliveries, describeLength, formatIdle } from "../../streams";
import { FieldItem, FieldList } from "../FieldList";
import { Time } from "../Time";
import { UnknownValue } from "./UnknownValue";

export function StreamDetail({ stream }: { stream: WatchedStream }) {
  const { reason, deliveries } = stream;
  const count = (value: number | null) => (value === null ? <UnknownValue reason={reason} /> : formatExact(value));
  return (
    <div class="stream-detail" data-testid="stream-detail">
      <FieldList testId="stream-facts">
        <FieldItem label="Undelivered">{count(stream.undelivered)}</FieldItem>
        <FieldItem label="Pending">{count(stream.pending)}</FieldItem>
        <FieldItem label="Awaiting retry">
          {count(stream.retrying)}
          {stream.in_backoff !== null && stream.in_backoff > 0 && ` (${formatExact(stream.in_backoff)} not due yet)`}
        </FieldItem>
        <FieldItem label="Oldest undelivered">{formatDuration(stream.oldest_undelivered_age_ms)}</FieldItem>
        <FieldItem label="Oldest pending">{formatDuration(stream.oldest_pending_age_ms)}</FieldItem>
        <FieldItem label="Longest idle">{formatDuration(stream.longest_idle_ms)}</FieldItem>
        <FieldItem label="Deliveries (oldest pending entries)">{deliveries === null ? <UnknownValue reason={reason} /> : describeDeliveries(deliveries) || "no pending entries"}</FieldItem>
        <FieldItem label="Dead letters">{count(stream.dead)}</FieldItem>
        <FieldItem label="Stream length">{stream.total_messages === null ? <UnknownValue reason={reason} /> : describeLength(stream.total_messages, stream.hard_maxlen)}</FieldItem>
        <FieldItem label="Measured">
          {stream.measured_at === null ? "never" : <Time iso={stream.measured_at} />}
          {stream.unknown_since !== null && (
            <>
              {" · incomplete since "}
              <Time iso={stream.unknown_since} />
            </>
          )}
        </FieldItem>
      </FieldList>
      {stream.consumers === null ? null : stream.consumers.length === 0 ? (
        <p class="quiet">This group has no consumers.</p>
      ) : (
        <Consumers consumers={stream.consumers} total={stream.consumers_total ?? stream.consumers.length} />
      )}
      <p>
        <a href={queueHref(stream)}>History and charts for {stream.queue}</a>
      </p>
    </div>
  );
}

function Consumers({ consumers, total }: { consumers: readonly StreamConsumer[]; total: number }) {
  return (
    <>
      <table class="table" aria-label="Consumers" data-testid="consumers" data-rows={consumers.length}>
        <thead>
          <tr>
            <th scope="col" class="text name">
              Consumer
            </th>
            <th scope="col" class="number">
              Pending
            </th>
            <th scope="col" class="number oldest">
              Idle
            </th>
          </tr>
        </thead>
        <tbody>
          {consumers.map((consumer) => (
            <tr key={consumer.name} class={consumer.stuck ? "long" : ""}>
              <td class="text name">
                <span class="cell-name">
                  <span class="line">
                    <span title={consumer.name}>{consumer.name}</span>
                    {consumer.stuck && <em class="tag">stuck</em>}
                  </span>
                </span>
              </td>
              <td class="number" title={`${formatExact(consumer.pending)} entries`}>
                {formatExact(consumer.pending)}
              </td>
              <td class="number oldest" title={`${formatExact(consumer.idle_ms)} ms`}>
                <span class="sr-only">{formatIdle(consumer.idle_ms)}</span>
                <span aria-hidden="true">{formatDuration(consumer.idle_ms)}</span>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {total > consumers.length && <p class="quiet">{formatExact(total - consumers.length)} more with fewer pending entries</p>}
    </>
  );
}
