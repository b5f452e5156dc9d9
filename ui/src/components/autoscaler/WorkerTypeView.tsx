/** One worker type: the wanted number of workers, and the decisions that led to it. */
import { listDecisions } from "../../api";
import type { Tenant, WorkerType } from "../../apiTypes";
import { describeScope, describeWork } from "../../autoscale";
import { formatCount, formatExact, UNKNOWN } from "../../format";
import { uniqueById, usePages } from "../../pagination";
import { usePolled, useTitle } from "../../polling";
import { href, useSetParams } from "../../router";
import { MoreButton } from "../MoreButton";
import { Stat, StatRow } from "../Stat";
import { Time } from "../Time";
import { DecisionItem } from "./DecisionItem";
import { WorkerChart } from "./WorkerChart";
import { TypeTags } from "./WorkerTypes";

const REFRESH_MS = 10_000;

interface Props {
  tenant: Tenant | null;
  type: WorkerType;
  /** Show only decisions that changed the number. */
  changes: boolean;
}

export function WorkerTypeView({ tenant, type, changes }: Props) {
  const setParams = useSetParams();
  const key = `decisions ${type.name} ${changes}`;
  const first = usePolled(key, (signal) => listDecisions(type.name, changes, null, signal), REFRESH_MS);
  const newest = first.data?.decisions ?? [];
  const more = usePages(
    key,
    first.data?.next ?? null,
    async (cursor, signal) => {
      const { decisions: items, next } = await listDecisions(type.name, changes, cursor, signal);
      return { items, next };
    },
    newest,
  );
  const shown = uniqueById([...newest, ...more.items]);
  useTitle(`${type.wanted} · ${type.name} – Headrace`);
  return (
    <>
      <p class="back">
        <a href={href({ name: "autoscaler" }, tenant)}>All worker types</a>
      </p>
      <div class="heading">
        <h1>{type.name}</h1>
        <p class="tags">
          <TypeTags type={type} />
        </p>
      </div>
      <WorkerTypeStats type={type} />
      <WorkerChart decisions={shown} />
      <section class="card list" aria-labelledby="decisions-title">
        <header class="list-head">
          <h2 id="decisions-title">Decisions</h2>
          <span class="quiet">newest first</span>
          <label class="switch end">
            <input type="checkbox" checked={changes} data-testid="changes" onChange={(event) => setParams({ changes: event.currentTarget.checked ? "only" : null })} />
            Changes only
          </label>
        </header>
        <ul data-testid="decisions" data-count={shown.length}>
          {shown.map((decision) => (
            <DecisionItem key={decision.id} decision={decision} />
          ))}
        </ul>
        {first.data !== null && shown.length === 0 && <p class="quiet list-note">{changes ? "No changes recorded." : "No decisions recorded."}</p>}
        <MoreButton more={more}>Show older</MoreButton>
      </section>
    </>
  );
}

function WorkerTypeStats({ type }: { type: WorkerType }) {
  return (
    <StatRow label={`Workers of type ${type.name}`}>
      <Stat name="wanted" label="Wanted" value={formatCount(type.wanted)} title={formatExact(type.wanted)}>
        {`min ${formatCount(type.min)}, max ${formatCount(type.max)}`}
      </Stat>
      <Stat name="current" label="Running" value={type.current === null ? UNKNOWN : formatCount(type.current)} title={formatExact(type.current)}>
        {`${type.current === null ? "run elsewhere; " : ""}${formatCount(type.per_worker)} jobs each`}
      </Stat>
      <Stat name="work" label="Serves" value={type.stream !== null ? "a stream" : type.all_queues ? "all queues" : `${type.queues.length} ${type.queues.length === 1 ? "queue" : "queues"}`} title={describeWork(type)}>
        <span title={`${describeWork(type)}; ${describeScope(type)}`}>
          {type.all_queues ? "" : `${describeWork(type)}; `}
          {describeScope(type)}
        </span>
      </Stat>
      <Stat name="decided" label="Last decision" value={type.fresh ? "current" : "stale"} title={type.sentence} tone={type.fresh ? "plain" : "warn"}>
        <Time iso={type.decided_at} />
      </Stat>
    </StatRow>
  );
}
