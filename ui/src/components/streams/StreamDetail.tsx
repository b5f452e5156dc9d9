/** One group, opened: its numbers in full, and its consumers, stuck ones first. */
import { exact, formatDuration } from "../../format";
import { queueHref } from "../../router";
import type { StreamConsumer, WatchedStream } from "../../apiTypes";
import { deliveriesWords, idleWords } from "../../streams";
import { Fact, Facts } from "../FieldList";
import { Time } from "../Time";
import { Unknown } from "./UnknownValue";

export function StreamDetail({ stream }: { stream: WatchedStream }) {
  const { reason, deliveries } = stream;
  const count = (value: number | null) => (value === null ? <Unknown reason={reason} /> : exact(value));
  return (
    <div class="stream-detail" data-testid="stream-detail">
      <Facts testId="stream-facts">
        <Fact label="Undelivered">{count(stream.undelivered)}</Fact>
        <Fact label="Pending">{count(stream.pending)}</Fact>
        <Fact label="To be tried again">
          {count(stream.retrying)}
          {stream.in_backoff !== null && stream.in_backoff > 0 && ` (${exact(stream.in_backoff)} not due yet)`}
        </Fact>
        <Fact label="Oldest undelivered">{formatDuration(stream.oldest_undelivered_age_ms)}</Fact>
        <Fact label="Oldest pending">{formatDuration(stream.oldest_pending_age_ms)}</Fact>
        <Fact label="Longest without a sign">{formatDuration(stream.longest_idle_ms)}</Fact>
        <Fact label="Deliveries of the oldest pending">{deliveries === null ? <Unknown reason={reason} /> : deliveriesWords(deliveries) || "none is pending"}</Fact>
        <Fact label="Dead letters">{count(stream.dead)}</Fact>
        <Fact label="Measured">
          {stream.measured_at === null ? "never" : <Time iso={stream.measured_at} />}
          {stream.unknown_since !== null && (
            <>
              {" · not all is known since "}
              <Time iso={stream.unknown_since} />
            </>
          )}
        </Fact>
      </Facts>
      {stream.consumers === null ? null : stream.consumers.length === 0 ? (
        <p class="quiet">Nobody reads with this group now.</p>
      ) : (
        <Consumers consumers={stream.consumers} total={stream.consumers_total ?? stream.consumers.length} />
      )}
      <p>
        <a href={queueHref(stream)}>History and charts of {stream.queue}</a>
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
              <td class="number" title={`${exact(consumer.pending)} entries`}>
                {exact(consumer.pending)}
              </td>
              <td class="number oldest" title={`${exact(consumer.idle_ms)} ms`}>
                <span class="sr-only">{idleWords(consumer.idle_ms)}</span>
                <span aria-hidden="true">{formatDuration(consumer.idle_ms)}</span>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {total > consumers.length && <p class="quiet">{exact(total - consumers.length)} more hold less.</p>}
    </>
  );
}
