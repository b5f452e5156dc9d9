/** Time ranges whose rows were lost between the pipeline and ClickHouse. History shows them as unknown. */
import type { PipelineGap } from "../../apiTypes";
import { formatExact, formatPlural } from "../../format";
import { newestGaps } from "../../pipeline";
import { Time } from "../Time";

const MAX_SHOWN = 25;

export function Gaps({ gaps }: { gaps: readonly PipelineGap[] }) {
  if (gaps.length === 0) return null;
  return (
    <section class="card list" aria-labelledby="gaps-title">
      <header class="list-head">
        <h2 id="gaps-title">Gaps in history</h2>
        <span class="quiet">last day; charts show these times as unknown for every queue</span>
      </header>
      <table class="table" data-testid="gaps" data-rows={gaps.length}>
        <thead>
          <tr>
            <th scope="col" class="text name">
              From
            </th>
            <th scope="col" class="text">
              To
            </th>
            <th scope="col" class="number">
              Shard
            </th>
            <th scope="col" class="number" title="Events whose rows are missing">
              Missing
            </th>
          </tr>
        </thead>
        <tbody>
          {newestGaps(gaps, MAX_SHOWN).map((gap) => (
            <tr key={`${gap.shard} ${gap.start}`}>
              <td class="text name">
                <Time iso={gap.start} />
              </td>
              <td class="text">
                <Time iso={gap.end} />
              </td>
              <td class="number">{gap.shard}</td>
              <td class="number">
                <span class="bad">{formatExact(gap.events)}</span>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {gaps.length > MAX_SHOWN && <p class="quiet">and {formatPlural(gaps.length - MAX_SHOWN, "older gap")}</p>}
    </section>
  );
}
