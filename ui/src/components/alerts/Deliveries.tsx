/** Messages about an incident per channel: delivered, partly delivered, or not delivered. */
import { deliveryState, describeDelivery } from "../../alerts";
import type { Delivery } from "../../apiTypes";
import { ListItem } from "../ListItem";
import { Time } from "../Time";

export function Deliveries({ deliveries }: { deliveries: readonly Delivery[] }) {
  if (deliveries.length === 0) return null;
  return (
    <section class="card list" aria-labelledby="deliveries-title">
      <header class="list-head">
        <h2 id="deliveries-title">Messages</h2>
        <span class="quiet">one per change and channel</span>
      </header>
      <ul data-testid="deliveries" data-count={deliveries.length}>
        {deliveries.map((delivery) => (
          <DeliveryItem key={delivery.id} delivery={delivery} />
        ))}
      </ul>
    </section>
  );
}

function DeliveryItem({ delivery }: { delivery: Delivery }) {
  const state = deliveryState(delivery);
  const isGood = state === "delivered" || state === "waiting";
  return (
    <ListItem
      testId="delivery"
      title={
        <>
          <em class="tag cool">{delivery.kind}</em>
          <span>{delivery.channel}</span>
        </>
      }
    >
      <span class={isGood ? "" : "bad"} data-testid="delivery-state" data-state={state}>
        {describeDelivery(delivery)}
      </span>
      <Time iso={delivery.delivered_at ?? delivery.given_up_at ?? delivery.created_at} />
      {delivery.error !== null && <span class="bad">{delivery.error}</span>}
    </ListItem>
  );
}
