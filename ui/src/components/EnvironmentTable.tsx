/** Table of all environments, deepest first, to find the tenant that causes the load. */
import type { Environment, Tenant } from "../apiTypes";
import { formatCount, formatDuration, formatExact, formatShare, formatUtcTime, UNKNOWN } from "../format";
import { href, tenantKey } from "../router";

const MAX_SHOWN = 50;

export function EnvironmentTable({ environments, current }: { environments: readonly Environment[]; current: Tenant }) {
  const sorted = [...environments].sort((a, b) => b.depth - a.depth || tenantKey(a).localeCompare(tenantKey(b)));
  const all = environments.reduce((sum, each) => sum + each.depth, 0);
  return (
    <section class="card list" aria-labelledby="environments-title">
      <header class="list-head">
        <h2 id="environments-title">Environments</h2>
        <span class="quiet">deepest first</span>
      </header>
      <table class="table environments" data-testid="environments">
        <thead>
          <tr>
            <th scope="col" class="text name">
              Environment
            </th>
            <th scope="col" class="number">
              Depth
            </th>
            <th scope="col" class="number wide">
              Share
            </th>
            <th scope="col" class="number wide">
              Running
            </th>
            <th scope="col" class="number wide">
              Dead
            </th>
            <th scope="col" class="number oldest">
              Oldest
            </th>
          </tr>
        </thead>
        <tbody>
          {sorted.slice(0, MAX_SHOWN).map((each) => (
            <EnvironmentRow key={tenantKey(each)} each={each} share={all === 0 ? null : each.depth / all} here={tenantKey(each) === tenantKey(current)} />
          ))}
        </tbody>
      </table>
      {sorted.length > MAX_SHOWN && <p class="quiet list-note">{sorted.length - MAX_SHOWN} more with fewer waiting jobs</p>}
    </section>
  );
}

function EnvironmentRow({ each, share, here }: { each: Environment; share: number | null; here: boolean }) {
  const age = each.oldest_age_ms;
  return (
    <tr class={here ? "here" : ""}>
      <td class="text name">
        <span class="cell-name">
          <span class="line">
            <a href={href({ name: "overview" }, each)} aria-current={here ? "true" : undefined}>
              {each.org} / {each.project} / {each.env}
            </a>
            {each.paused > 0 && <em class="tag">{each.paused} paused</em>}
          </span>
        </span>
      </td>
      <td class="number" title={formatExact(each.depth)}>
        {formatCount(each.depth)}
      </td>
      <td class="number wide">
        <span class="meter" aria-hidden="true">
          <span style={{ width: `${100 * (share ?? 0)}%` }} />
        </span>
        <span class="share">{share === null ? UNKNOWN : formatShare(share)}</span>
      </td>
      <td class="number wide" title={`${formatExact(each.running)}${each.limit === null ? " running, no limit" : ` running, limit ${formatExact(each.limit)}`}`}>
        {formatCount(each.running)}
        {each.limit !== null && <small> / {formatCount(each.limit)}</small>}
      </td>
      <td class="number wide">
        {each.dead > 0 ? (
          <a href={href({ name: "dead" }, each)} title={formatExact(each.dead)}>
            {formatCount(each.dead)}
          </a>
        ) : (
          <span class="zero">0</span>
        )}
      </td>
      <td class="number oldest" title={each.oldest_at === null ? "no waiting jobs" : `since ${formatUtcTime(Date.parse(each.oldest_at) / 1000)}`}>
        {age === null ? <span class="zero">{UNKNOWN}</span> : formatDuration(age)}
      </td>
    </tr>
  );
}
