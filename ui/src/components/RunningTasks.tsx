/** Running tasks, longest first. Collapsed by default; the heading shows the count and the longest run time. */
import { getRunningTasks } from "../api";
import type { Tenant } from "../apiTypes";
import { formatCount, formatDuration, formatExact } from "../format";
import { usePolled } from "../polling";
import { jobHref, queueHref, tenantKey } from "../router";
import { Time } from "./Time";

const REFRESH_MS = 5000;
/** Tasks that run longer than this are highlighted. */
export const LONG_MS = 5 * 60_000;
const MAX_SHOWN = 200;

interface Props {
  tenant: Tenant;
  open: boolean;
  onToggle: (open: boolean) => void;
}

export function RunningTasks({ tenant, open, onToggle }: Props) {
  const { data } = usePolled(`running ${tenantKey(tenant)}`, (signal) => getRunningTasks(tenant, signal), REFRESH_MS);
  const tasks = data?.tasks ?? [];
  const longest = tasks[0]?.runningForMs ?? null;
  const long = tasks.filter((task) => task.runningForMs > LONG_MS).length;
  return (
    <section class="card list running" aria-labelledby="running-title">
      <h2 id="running-title">
        <button type="button" class="disclosure" aria-expanded={open} aria-controls="running-tasks" data-testid="running-toggle" onClick={() => onToggle(!open)}>
          Running tasks
          <span class="quiet" data-testid="running-count" title={formatExact(tasks.length)}>
            {data === null ? " " : `${formatCount(tasks.length)}${data.truncated ? "+" : ""}`}
            {longest !== null && ` · longest ${formatDuration(longest)}`}
          </span>
          {long > 0 && <em class="tag">{long} over 5 min</em>}
        </button>
      </h2>
      {open && (
        <div id="running-tasks">
          {tasks.length === 0 ? (
            <p class="quiet list-note">No jobs are running in this environment.</p>
          ) : (
            <table class="table" data-testid="running">
              <thead>
                <tr>
                  <th scope="col" class="text name">
                    Job
                  </th>
                  <th scope="col" class="text wide">
                    Queue
                  </th>
                  <th scope="col" class="text wide">
                    Task
                  </th>
                  <th scope="col" class="number">
                    Duration
                  </th>
                  <th scope="col" class="number wide when">
                    Started
                  </th>
                  <th scope="col" class="text wide">
                    Worker
                  </th>
                </tr>
              </thead>
              <tbody>
                {tasks.slice(0, MAX_SHOWN).map((task) => (
                  <tr key={task.did} class={task.runningForMs > LONG_MS ? "long" : ""}>
                    <td class="text name">
                      <span class="cell-name">
                        <span class="line">
                          <a href={jobHref(task, task.did)} title={task.did}>
                            {task.did}
                          </a>
                        </span>
                        <small class="narrow">
                          {task.actionName} · {task.actionClass}
                        </small>
                      </span>
                    </td>
                    <td class="text wide">
                      <a href={queueHref({ ...task, queue: task.actionClass })} title={task.actionClass}>
                        {task.actionClass}
                      </a>
                    </td>
                    <td class="text wide" title={task.actionName}>
                      {task.actionName}
                    </td>
                    <td class="number" title={`${formatExact(task.runningForMs)} ms`}>
                      {formatDuration(task.runningForMs)}
                    </td>
                    <td class="number wide when">
                      <Time iso={task.startTime} />
                    </td>
                    <td class="text wide" title={task.appName}>
                      {task.appName}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          )}
        </div>
      )}
    </section>
  );
}
