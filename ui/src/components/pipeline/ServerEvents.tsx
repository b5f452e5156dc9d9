/** Server events (failover, data loss, restore), with the accepted jobs missing since, per queue. */
import type { ServerEvent } from "../../apiTypes";
import { formatExact, formatPlural } from "../../format";
import { countUnlistedQueues, describeLoss, formatEventTitle } from "../../pipeline";
import { queueHref, queueKey } from "../../router";
import { ListItem } from "../ListItem";
import { EmptyNotice } from "../Notice";
import { Time } from "../Time";

/** Null `events` means that PostgreSQL, which stores them, did not respond. */
export function ServerEvents({ events }: { events: readonly ServerEvent[] | null }) {
  if (events === null) return <EmptyNotice title="Server events unavailable">PostgreSQL, which stores them, did not respond.</EmptyNotice>;
  if (events.length === 0) return null;
  return (
    <section class="card list" aria-labelledby="server-events-title">
      <header class="list-head">
        <h2 id="server-events-title">Server events</h2>
        <span class="quiet">last 7 days, newest first</span>
      </header>
      <ul data-testid="server-events" data-count={events.length}>
        {events.map((event) => (
          <ServerEventItem key={event.id} event={event} />
        ))}
      </ul>
    </section>
  );
}

function ServerEventItem({ event }: { event: ServerEvent }) {
  const unlisted = countUnlistedQueues(event);
  return (
    <ListItem testId="server-event" title={<span>{formatEventTitle(event)}</span>}>
      <span>
        noticed <Time iso={event.noticed_at} />, shard {event.shard}
      </span>
      <span class={event.missing > 0 ? "bad" : ""}>{describeLoss(event)}</span>
      {event.losses.map((loss) => (
        <span key={queueKey(loss)} data-testid="server-event-loss">
          <a href={queueHref(loss)}>{`${loss.org} / ${loss.project} / ${loss.env} / ${loss.queue}`}</a> {formatExact(loss.missing)}
        </span>
      ))}
      {unlisted > 0 && <span>and {formatPlural(unlisted, "more queue")}</span>}
      {event.description !== null && event.description !== "" && <span>{event.description}</span>}
    </ListItem>
  );
}
