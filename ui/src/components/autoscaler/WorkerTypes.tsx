/** List of worker types with running and wanted workers, and the last decision. */
import type { Tenant, WorkerType } from "../../apiTypes";
import { describeScope, describeWork } from "../../autoscale";
import { href } from "../../router";
import { ListItem } from "../ListItem";
import { EmptyNotice } from "../Notice";
import { Time } from "../Time";

export function WorkerTypes({ tenant, types }: { tenant: Tenant | null; types: readonly WorkerType[] }) {
  if (types.length === 0) return <NoTypes />;
  return (
    <section class="card list" aria-label="Worker types">
      <ul data-testid="worker-types" data-count={types.length}>
        {types.map((type) => (
          <ListItem
            key={type.name}
            testId="worker-type"
            faded={!type.enabled}
            title={
              <>
                <a href={href({ name: "autoscaler" }, tenant, { type: type.name })}>{type.name}</a>
                <TypeTags type={type} />
              </>
            }
          >
            <span>
              <strong>{type.wanted} wanted</strong>
              {type.current !== null && ` · ${type.current} running`} · {type.min} to {type.max}
            </span>
            <span>{describeWork(type)}</span>
            <span>{describeScope(type)}</span>
            <span class="across">
              {type.sentence} · <Time iso={type.decided_at} />
            </span>
          </ListItem>
        ))}
      </ul>
    </section>
  );
}

export function TypeTags({ type }: { type: WorkerType }) {
  return (
    <>
      {!type.enabled && <em class="tag off">disabled</em>}
      {!type.known && <em class="tag">incomplete data</em>}
      {!type.fresh && (
        <em class="tag" title="Is `headrace autoscale run` running?">
          no recent decision
        </em>
      )}
    </>
  );
}

function NoTypes() {
  return (
    <EmptyNotice title="No worker types">
      Define worker types as <code>[[worker]]</code> tables in the file named by <code>autoscale.types</code>, then start <code>headrace autoscale run</code>. A type
      appears here after its first decision.
    </EmptyNotice>
  );
}
