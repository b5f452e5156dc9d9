/** One function per alert endpoint. Does not depend on components or hooks. */
import { pathSegment, tenantQuery } from "./api";
import type {
  Backtest,
  Channel,
  ChannelList,
  CreatedChannel,
  Incident,
  IncidentDetail,
  IncidentList,
  NewChannel,
  NewSilence,
  Rule,
  RuleFields,
  RuleList,
  Silence,
  SilenceList,
  Tenant,
  TestResult,
} from "./apiTypes";
import { ApiError, getChecked, request, REQUEST_TIMEOUT_MS } from "./http";

const ALERTS = "/api/v1/alerts";
/** The server responds only after the test message was sent, or timed out. */
const TEST_TIMEOUT_MS = REQUEST_TIMEOUT_MS + 5000;
/** A back-test reads a day of history and computes for some seconds if there are many queues. */
const BACKTEST_TIMEOUT_MS = 60_000;

export function listIncidents(tenant: Tenant, state: "open" | "resolved", cursor: string | null, signal: AbortSignal): Promise<IncidentList> {
  return getChecked(`${ALERTS}/incidents?${tenantQuery(tenant)}&state=${state}&limit=50${cursorParam(cursor)}`, signal, "incidents");
}

function cursorParam(cursor: string | null): string {
  return cursor === null ? "" : `&cursor=${encodeURIComponent(cursor)}`;
}

/** List open incidents of Headrace's own health. The API lists them among those of all tenants, for keys with full scope. */
export async function listHealthIncidents(signal: AbortSignal): Promise<Incident[]> {
  const incidents: Incident[] = [];
  let cursor: string | null = null;
  do {
    const page: IncidentList = await getChecked(`${ALERTS}/incidents?state=open&limit=500${cursorParam(cursor)}`, signal, "incidents");
    incidents.push(...page.incidents.filter((incident) => incident.condition === null));
    cursor = page.next;
  } while (cursor !== null);
  return incidents;
}

export function getIncident(id: string, signal: AbortSignal): Promise<IncidentDetail> {
  return getChecked(`${ALERTS}/incidents/${pathSegment(id)}`, signal, "transitions");
}

export async function acknowledgeIncident(id: string, signal: AbortSignal): Promise<void> {
  await withConflictMessage(request("POST", `${ALERTS}/incidents/${pathSegment(id)}/acknowledge`, signal));
}

export async function resolveIncident(id: string, signal: AbortSignal): Promise<void> {
  await withConflictMessage(request("POST", `${ALERTS}/incidents/${pathSegment(id)}/resolve`, signal));
}

/** Give a conflict (409) a friendlier title: another user or the evaluator was first. */
async function withConflictMessage(response: Promise<unknown>): Promise<void> {
  try {
    await response;
  } catch (cause) {
    throw cause instanceof ApiError && cause.status === 409 ? new ApiError("Already handled", cause.detail, 409) : cause;
  }
}

export async function listRules(tenant: Tenant, signal: AbortSignal): Promise<Rule[]> {
  return (await getChecked<RuleList>(`${ALERTS}/rules?${tenantQuery(tenant)}`, signal, "rules")).rules;
}

export type RuleInput = Partial<RuleFields> & { enabled?: boolean };

export async function addRule(tenant: Tenant, input: RuleInput, signal: AbortSignal): Promise<void> {
  await request("POST", `${ALERTS}/rules?${tenantQuery(tenant)}`, signal, input);
}

/** Ask how often a rule would have fired in the last 24 hours; it need not exist. */
export async function backtestRule(tenant: Tenant, input: RuleInput, signal: AbortSignal): Promise<Backtest> {
  const name = input.name === "" ? undefined : input.name;
  return (await request("POST", `${ALERTS}/rules/backtest?${tenantQuery(tenant)}`, signal, { ...input, name }, BACKTEST_TIMEOUT_MS)) as Backtest;
}

export async function changeRule(id: string, input: RuleInput, signal: AbortSignal): Promise<void> {
  await request("PATCH", `${ALERTS}/rules/${pathSegment(id)}`, signal, input);
}

export async function removeRule(id: string, signal: AbortSignal): Promise<void> {
  await request("DELETE", `${ALERTS}/rules/${pathSegment(id)}`, signal);
}

export async function listChannels(tenant: Tenant, signal: AbortSignal): Promise<Channel[]> {
  return (await getChecked<ChannelList>(`${ALERTS}/channels?${tenantQuery(tenant)}`, signal, "channels")).channels;
}

export async function addChannel(tenant: Tenant, input: NewChannel, signal: AbortSignal): Promise<CreatedChannel> {
  return (await request("POST", `${ALERTS}/channels?${tenantQuery(tenant)}`, signal, input)) as CreatedChannel;
}

export async function removeChannel(id: string, signal: AbortSignal): Promise<void> {
  await request("DELETE", `${ALERTS}/channels/${pathSegment(id)}`, signal);
}

export async function testChannel(id: string, signal: AbortSignal): Promise<TestResult> {
  return (await request("POST", `${ALERTS}/channels/${pathSegment(id)}/test`, signal, undefined, TEST_TIMEOUT_MS)) as TestResult;
}

export async function listSilences(tenant: Tenant, signal: AbortSignal): Promise<Silence[]> {
  return (await getChecked<SilenceList>(`${ALERTS}/silences?${tenantQuery(tenant)}`, signal, "silences")).silences;
}

export async function addSilence(tenant: Tenant, input: NewSilence, signal: AbortSignal): Promise<void> {
  await request("POST", `${ALERTS}/silences?${tenantQuery(tenant)}`, signal, input);
}

export async function endSilence(id: string, signal: AbortSignal): Promise<void> {
  await request("DELETE", `${ALERTS}/silences/${pathSegment(id)}`, signal);
}
