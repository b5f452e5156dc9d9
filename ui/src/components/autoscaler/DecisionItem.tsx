/** One decision; expands to the inputs it was based on. */
import { useState } from "preact/hooks";
import type { Decision } from "../../apiTypes";
import { readDemand, readSources, readWorkerCount, type Source } from "../../autoscale";
import { formatCount, formatDuration, formatExact, formatPlural, formatRate } from "../../format";
import { Time } from "../Time";

const MAX_SHOWN = 50;

export function DecisionItem({ decision }: { decision: Decision }) {
  const [open, setOpen] = useState(false);
  return (
    <li class="letter">
      <button type="button" class="disclosure" aria-expanded={open} data-testid="decision" onClick={() => setOpen(!open)}>
        <span>{decision.sentence}</span>
      </button>
      <p class="quiet facts">
        <Time iso={decision.decided_at} />
        {decision.verb !== "hold" && <strong>{`${decision.current} → ${decision.wanted}`}</strong>}
        {!decision.known && <em class="tag">incomplete data</em>}
      </p>
      {open && <Inputs decision={decision} />}
    </li>
  );
}

function Inputs({ decision }: { decision: Decision }) {
  const sources = readSources(decision);
  const workers = readWorkerCount(decision);
  const demand = readDemand(decision);
  return (
    <div class="letter-detail" data-testid="inputs">
      <p class="quiet">{workers === null ? "Running workers unknown: Headrace does not start them." : `${formatPlural(workers, "worker")} running.`}</p>
      {demand !== null && <p class="quiet">{`The load needs ${formatSlots(demand.slots)} slots, ${formatSlots(demand.allowed)} allowed by limits and pauses.`}</p>}
      {sources.length > 0 && (
        <table class="table">
          <thead>
            <tr>
              <th scope="col" class="text name">
                Queue
              </th>
              <th scope="col" class="number">
                Waiting
              </th>
              <th scope="col" class="number">
                Running
              </th>
              <th scope="col" class="number wide">
                Arrivals
              </th>
              <th scope="col" class="number wide">
                Run time
              </th>
              <th scope="col" class="number oldest wide">
                Oldest
              </th>
            </tr>
          </thead>
          <tbody>
            {sources.slice(0, MAX_SHOWN).map((source, index) => (
              <SourceRow key={index} source={source} />
            ))}
          </tbody>
        </table>
      )}
      {sources.length > MAX_SHOWN && <p class="quiet">{sources.length - MAX_SHOWN} more not shown.</p>}
    </div>
  );
}

function formatSlots(slots: number): string {
  return formatExact(Math.round(slots * 10) / 10);
}

function SourceRow({ source }: { source: Source }) {
  return (
    <tr>
      <td class="text name" title={source.name}>
        {source.name} {source.paused && <em class="tag">paused</em>} {source.unknown !== "" && <em class="tag">{source.unknown}</em>}
      </td>
      <td class="number" title={formatExact(source.depth)}>
        {formatCount(source.depth)}
      </td>
      <td class="number" title={formatExact(source.running)}>
        {formatCount(source.running)}
      </td>
      <td class="number wide" title={formatExact(source.arrivalsPerS)}>
        {formatRate(source.arrivalsPerS)}
        {source.arrivalsPerS !== null && "/s"}
      </td>
      <td class="number wide">{formatDuration(source.serviceMs)}</td>
      <td class="number oldest wide">{formatDuration(source.ageMs)}</td>
    </tr>
  );
}
