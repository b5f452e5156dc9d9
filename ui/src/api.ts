/** One function per endpoint. Does not depend on components or hooks. */
import type {
  CurrentKey,
  DeadFilter,
  DeadJobDetail,
  DeadList,
  DecisionList,
  DetailedQueues,
  EnvironmentList,
  HistoryColumns,
  Job,
  PipelineHealth,
  QueueDetail,
  QueueList,
  QueueRef,
  QueueState,
  Redriven,
  RunningTasks,
  SettingsChange,
  Tenant,
  TopQueues,
  WatchedStream,
  WatchedStreamList,
  WorkerType,
  WorkerTypeList,
} from "./apiTypes";
import { ENVIRONMENT_FIELDS, QUEUE_FIELDS } from "./history";
import { ApiError, getChecked, getObject, request } from "./http";

const MAX_PAGES = 10;

export async function getCurrentKey(signal: AbortSignal): Promise<CurrentKey> {
  return (await request("GET", "/api/v1/session", signal)) as CurrentKey;
}

export function listEnvironments(signal: AbortSignal): Promise<EnvironmentList> {
  return getChecked("/api/v1/environments", signal, "environments");
}

/** List all queues of an environment, up to MAX_PAGES pages. */
export async function listQueues(tenant: Tenant, signal: AbortSignal): Promise<QueueList> {
  const queues: QueueState[] = [];
  let cursor: string | null = null;
  for (let page = 1; ; page += 1) {
    const next: string = cursor === null ? "" : `&cursor=${encodeURIComponent(cursor)}`;
    const found: QueueList = await getChecked<QueueList>(`/api/v1/queues?${tenantQuery(tenant)}${next}`, signal, "queues");
    queues.push(...found.queues);
    cursor = found.next;
    if (cursor === null || page === MAX_PAGES) return { ...found, queues };
  }
}

export function getQueue(ref: QueueRef, signal: AbortSignal): Promise<QueueDetail> {
  return getChecked(`/api/v1/queues/${pathSegment(ref.queue)}?${tenantQuery(ref)}`, signal, "missing_tasks");
}

export function streamPath(tenant: Tenant): string {
  return `/api/v1/stream?${tenantQuery(tenant)}`;
}

export function getQueueHistory(ref: QueueRef, when: string, signal: AbortSignal): Promise<HistoryColumns> {
  return getHistory(`${historyPath(ref, when)}&fields=${QUEUE_FIELDS}`, signal);
}

export function historyPath(ref: QueueRef, when: string): string {
  return `/api/v1/queues/${pathSegment(ref.queue)}/metrics?${tenantQuery(ref)}&${when}`;
}

export function getEnvironmentHistory(tenant: Tenant, when: string, signal: AbortSignal): Promise<HistoryColumns> {
  const path = `/api/v1/environments/${pathSegment(tenant.env)}/queue-metrics?${projectQuery(tenant)}&${when}`;
  return getHistory(`${path}&fields=${ENVIRONMENT_FIELDS}`, signal);
}

function getHistory(path: string, signal: AbortSignal): Promise<HistoryColumns> {
  return getObject(`${path}&format=columns`, signal, "columns");
}

export function getTopQueues(tenant: Tenant, metric: string, period: string, signal: AbortSignal): Promise<TopQueues> {
  const query = `${projectQuery(tenant)}&metric=${metric}&period=${period}&limit=5`;
  return getChecked(`/api/v1/environments/${pathSegment(tenant.env)}/top-queues?${query}`, signal, "queues");
}

export function getDetailedQueues(tenant: Tenant, signal: AbortSignal): Promise<DetailedQueues> {
  return getChecked(`/api/v2/metrics/queues/detailed?${tenantQuery(tenant)}`, signal, "warmQueues");
}

export function getRunningTasks(tenant: Tenant, limit: number, cursor: string | null, signal: AbortSignal): Promise<RunningTasks> {
  const next = cursor === null ? "" : `&cursor=${encodeURIComponent(cursor)}`;
  return getChecked(`/api/v2/metrics/queues/running?${tenantQuery(tenant)}&limit=${limit}${next}`, signal, "tasks");
}

/** Map queue names to the plugins that provide their tasks. */
export function getActionPlugins(tenant: Tenant, signal: AbortSignal): Promise<Record<string, string>> {
  return getChecked(`/api/v2/metrics/queues/action-plugins?${tenantQuery(tenant)}`, signal);
}

export async function getJob(tenant: Tenant, id: string, signal: AbortSignal): Promise<Job> {
  return (await request("GET", `/api/v1/jobs/${pathSegment(id)}?${tenantQuery(tenant)}`, signal)) as Job;
}

/** Cancel a waiting job, and with `running` also one that a worker runs. */
export async function cancelJob(tenant: Tenant, id: string, running: boolean, signal: AbortSignal): Promise<void> {
  await request("DELETE", `/api/v1/jobs/${pathSegment(id)}?${tenantQuery(tenant)}${running ? "&running=true" : ""}`, signal);
}

export function listDeadJobs(ref: QueueRef, which: DeadFilter, cursor: string | null, signal: AbortSignal): Promise<DeadList> {
  const query = Object.entries({ ...which, cursor }).flatMap(([name, value]) =>
    typeof value === "string" && value !== "" ? [`&${name}=${encodeURIComponent(value)}`] : [],
  );
  return getChecked(`/api/v1/queues/${pathSegment(ref.queue)}/dead?${tenantQuery(ref)}&limit=50${query.join("")}`, signal, "jobs");
}

export function getDeadJob(ref: QueueRef, id: string, signal: AbortSignal): Promise<DeadJobDetail> {
  return getChecked(`/api/v1/queues/${pathSegment(ref.queue)}/dead/${pathSegment(id)}?${tenantQuery(ref)}`, signal);
}

/** Redrive one batch of dead jobs. `next` in the response is null after the last batch. */
export async function redriveBatch(ref: QueueRef, which: DeadFilter, cursor: string | null, signal: AbortSignal): Promise<Redriven> {
  const path = `/api/v1/queues/${pathSegment(ref.queue)}/dead/redrive?${tenantQuery(ref)}`;
  return (await request("POST", path, signal, { ...which, limit: 200, ...(cursor === null ? {} : { cursor }) })) as Redriven;
}

export async function changeSettings(ref: QueueRef, change: SettingsChange, signal: AbortSignal): Promise<void> {
  await request("PATCH", `/api/v1/queues/${pathSegment(ref.queue)}/settings?${tenantQuery(ref)}`, signal, change);
}

export function getPipeline(signal: AbortSignal): Promise<PipelineHealth> {
  return getChecked("/api/v1/pipeline?limit=120", signal);
}

/** List all worker types within the key's scope; they may span environments. */
export async function listWorkerTypes(signal: AbortSignal): Promise<WorkerType[]> {
  return (await getChecked<WorkerTypeList>("/api/v1/autoscale", signal, "types")).types;
}

export function listDecisions(type: string, changes: boolean, cursor: string | null, signal: AbortSignal): Promise<DecisionList> {
  const next = cursor === null ? "" : `&cursor=${encodeURIComponent(cursor)}`;
  return getChecked(`/api/v1/autoscale/${pathSegment(type)}/decisions?limit=60${changes ? "&changes=true" : ""}${next}`, signal, "decisions");
}

/** List all watched streams within the key's scope. Their environments usually have no queues. */
export async function listStreams(signal: AbortSignal): Promise<WatchedStreamList> {
  const streams: WatchedStream[] = [];
  let cursor: string | null = null;
  for (let page = 1; ; page += 1) {
    const next: string = cursor === null ? "" : `?cursor=${encodeURIComponent(cursor)}`;
    const found: WatchedStreamList = await getChecked<WatchedStreamList>(`/api/v1/streams${next}`, signal, "streams");
    streams.push(...found.streams);
    cursor = found.next;
    if (cursor === null || page === MAX_PAGES) return { ...found, streams };
  }
}

/** Return the watched stream whose history is stored under this queue name; null if there is none. */
export async function getStreamForQueue(ref: QueueRef, signal: AbortSignal): Promise<WatchedStream | null> {
  const path = `/api/v1/streams?${tenantQuery(ref)}&name=${encodeURIComponent(ref.queue)}`;
  const { streams } = await getChecked<WatchedStreamList>(path, signal, "streams");
  return streams.find((each) => each.queue === ref.queue) ?? null;
}

export function tenantQuery(tenant: Tenant): string {
  return `${projectQuery(tenant)}&env=${encodeURIComponent(tenant.env)}`;
}

function projectQuery({ org, project }: Tenant): string {
  return `org=${encodeURIComponent(org)}&project=${encodeURIComponent(project)}`;
}

/** Encode a name as a path segment. Throws ApiError for "." and "..", which browsers resolve even when percent-encoded. */
export function pathSegment(name: string): string {
  if (name === "." || name === "..") {
    throw new ApiError("This name cannot be shown", `Browsers rewrite URL paths that contain “${name}” as a segment.`);
  }
  return encodeURIComponent(name);
}
