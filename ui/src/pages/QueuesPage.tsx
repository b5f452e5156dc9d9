/** Queues of an environment: waiting jobs by flow, type and task, and running tasks. */
import { useMemo } from "preact/hooks";
import { getActionPlugins, getDetailedQueues } from "../api";
import type { Tenant } from "../apiTypes";
import { formatCount, formatPlural } from "../format";
import { serverNow, useLiveQueues } from "../liveQueues";
import { useClock, usePolled, useTitle } from "../polling";
import { type Column, filterRows, flowTypes, groupByQueue, joinTiers, orderParam, parseFilter, parseOrder, type QueueRow, sortRows, toggleSort } from "../queueRows";
import { tenantKey, useSetParams } from "../router";
import { EmptyNotice, UnknownNotice } from "../components/Notice";
import { queueColumns } from "../components/queueColumns";
import { RunningTasks } from "../components/RunningTasks";
import { VirtualTable } from "../components/VirtualTable";

const DETAILS_MS = 5000;
const PLUGINS_MS = 30_000;

export function QueuesPage({ tenant, params }: { tenant: Tenant; params: URLSearchParams }) {
  const setParams = useSetParams();
  const queues = useLiveQueues(tenant);
  const details = usePolled(`details ${tenantKey(tenant)}`, (signal) => getDetailedQueues(tenant, signal), DETAILS_MS);
  const plugins = usePolled(`plugins ${tenantKey(tenant)}`, (signal) => getActionPlugins(tenant, signal), PLUGINS_MS);
  const now = useClock();
  useTitle("Queues – Headrace");

  const grouped = params.get("group") === "class";
  const order = parseOrder(params);
  const filter = parseFilter(params);
  const rows = useMemo(() => (details.data === null ? null : joinTiers(details.data)), [details.data]);
  const all = useMemo(
    () => (!grouped ? rows : queues.data === null ? null : groupByQueue(queues.data.byKey.values(), rows ?? [])),
    [grouped, rows, queues.data],
  );
  const types = useMemo(() => flowTypes(rows ?? []), [rows]);
  const shown = useMemo(
    () => (all === null ? [] : sortRows(filterRows(all, filter), order)),
    [all, filter.text, filter.type, filter.coldOnly, order.column, order.direction],
  );
  const nowMs = queues.data === null ? Date.now() : Math.floor(serverNow(queues.data, now) / 1000) * 1000;
  const columns = useMemo(
    () => queueColumns({ tenant, grouped, nowMs, plugins: plugins.data ?? {}, states: queues.data?.byKey ?? new Map() }),
    [tenantKey(tenant), grouped, nowMs, plugins.data, queues.data],
  );
  const total = shown.reduce((sum, row) => sum + (row.total ?? row.warm), 0);
  const coldUnavailable = details.data?.coldUnavailable ?? null;

  return (
    <>
      <div class="heading">
        <h1>Queues</h1>
        <p class="quiet" data-testid="queues-summary">
          {all === null ? " " : `${formatPlural(shown.length, grouped ? "queue" : "row")}, ${formatCount(total)} waiting`}
          {details.data?.truncated === true && " · showing only the largest"}
        </p>
      </div>
      <RunningTasks tenant={tenant} open={params.get("running") === "open"} onToggle={(open) => setParams({ running: open ? "open" : null }, "replace")} />
      {coldUnavailable !== null && (
        <UnknownNotice title="PostgreSQL is unavailable: jobs that wait there are unknown">{grouped ? coldUnavailable : `Rows show only jobs in Valkey. ${coldUnavailable}`}</UnknownNotice>
      )}
      <section class="card list" aria-label="Waiting jobs">
        <div class="toolbar">
          <input
            type="search"
            class="search"
            placeholder="Search by flow, task or queue"
            aria-label="Search by flow, task or queue"
            value={filter.text}
            data-testid="search"
            onInput={(event) => setParams({ q: event.currentTarget.value }, "replace")}
          />
          <select aria-label="Flow type" class="select" value={filter.type} data-testid="type" onChange={(event) => setParams({ type: event.currentTarget.value })}>
            <option value="">All types</option>
            {[...new Set([...types, ...(filter.type === "" ? [] : [filter.type])])].map((type) => (
              <option key={type} value={type} selected={type === filter.type}>
                {type}
              </option>
            ))}
          </select>
          <label class="switch">
            <input type="checkbox" checked={filter.coldOnly} onChange={(event) => setParams({ tier: event.currentTarget.checked ? "cold" : null })} />
            Cold only
          </label>
          <label class="switch">
            <input
              type="checkbox"
              checked={grouped}
              data-testid="group"
              onChange={(event) => setParams({ group: event.currentTarget.checked ? "class" : null })}
            />
            Group by queue
          </label>
        </div>
        <VirtualTable<QueueRow, Column>
          label={grouped ? "Queues" : "Waiting jobs by flow and task"}
          testId="queues"
          columns={columns}
          rows={shown}
          rowKey={(row) => row.key}
          sorted={order}
          onSort={(column) => setParams({ sort: orderParam(toggleSort(order, column)) }, "replace")}
        />
        {all !== null && shown.length === 0 && (
          <EmptyNotice title={all.length === 0 ? "No waiting jobs" : "No matches"}>
            {all.length === 0 ? "Every job in this environment has been started. Select “Group by queue” to see its queues." : "Try other search terms or remove a filter."}
          </EmptyNotice>
        )}
      </section>
    </>
  );
}
