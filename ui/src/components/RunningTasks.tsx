/** Running tasks, longest first. Collapsed by default; the heading shows the count and the longest run time. */
import { getRunningTasks } from "../api";
import type { RunningTasks as RunningTaskList, Tenant } from "../apiTypes";
import { formatCount, formatDuration, formatExact } from "../format";
import { useRefreshedPages } from "../pagination";
import { usePolled } from "../polling";
import { jobHref, queueHref, tenantKey } from "../router";
import { MoreButton } from "./MoreButton";
import { Time } from "./Time";

const REFRESH_MS = 5000;
/** Tasks that run longer than this are highlighted. */
export const LONG_MS = 5 * 60_000;
const PAGE_SIZE = 200;

interface Props {
  tenant: Tenant;
  open: boolean;
  onToggle: (open: boolean) => void;
}

export function RunningTasks({ tenant, open, onToggle }: Props) {
  const key = `running ${tenantKey(tenant)}`;
  const { data } = usePolled(key, (signal) => getRunningTasks(tenant, PAGE_SIZE, null, signal), REFRESH_MS);
  const loadPage = async (cursor: string | null, signal: AbortSignal) => {
    const { tasks, next } = await getRunningTasks(tenant, PAGE_SIZE, cursor, signal);
    return { items: tasks, next };
  };
  const more = useRefreshedPages(`more ${key}`, data?.next ?? null, loadPage, REFRESH_MS);
  const tasks = uniqueTasks([...(data?.tasks ?? []), ...more.items]);
  const total = Math.max(data?.total ?? 0, tasks.length);
  const longest = tasks[0]?.runningForMs ?? null;
  const long = tasks.filter((task) => task.runningForMs > LONG_MS).length;
  return (
    <section class="card list running" aria-labelledby="running-title">
      <h2 id="running-title">
        <button type="button" class="disclosure" aria-expanded={open} aria-controls="running-tasks" data-testid="running-toggle" onClick={() => onToggle(!open)}>
          Running tasks
          <span class="quiet" data-testid="running-count" title={formatExact(total)}>
            {data === null ? " " : formatCount(total)}
            {longest !== null && ` · longest ${formatDuration(longest)}`}
          </span>
          {long > 0 && (
            <em class="tag">
              {long}
              {long === tasks.length && total > long ? "+" : ""} over 5 min
            </em>
          )}
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
                {tasks.map((task) => (
                  <tr key={`${task.appName} ${task.did}`} class={task.runningForMs > LONG_MS ? "long" : ""}>
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
          {total > tasks.length && (
            <p class="quiet list-note" data-testid="running-shown">
              Showing {formatExact(tasks.length)} of {formatExact(total)}, longest running first.
            </p>
          )}
          <MoreButton more={more}>Show more tasks</MoreButton>
        </div>
      )}
    </section>
  );
}

/** Keep the first of each task: pages that are loaded at different times may overlap. */
function uniqueTasks(tasks: RunningTaskList["tasks"]): RunningTaskList["tasks"] {
  return [...new Map(tasks.map((task) => [`${task.appName} ${task.did}`, task] as const)).values()];
}
