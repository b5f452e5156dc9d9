/** One function per endpoint of alerts. Imports nothing of the page. */
import { segment, tenantQuery } from "./api";
import { ApiError, getShape, request, REQUEST_TIMEOUT_MS } from "./http";
import type { Channel, ChannelType, Incident, IncidentDetail, IncidentList, MadeChannel, Rule, RuleFields, Silence, Tenant, Tested } from "./apiTypes";

const ALERTS = "/api/v1/alerts";
/** The server waits for a test message; the answer comes after that. */
const TEST_TIMEOUT_MS = REQUEST_TIMEOUT_MS + 5000;

export function listIncidents(tenant: Tenant, state: "open" | "resolved", cursor: string | null, signal: AbortSignal): Promise<IncidentList> {
  return getShape(`${ALERTS}/incidents?${tenantQuery(tenant)}&state=${state}&limit=50${after(cursor)}`, signal, "incidents");
}

function after(cursor: string | null): string {
  return cursor === null ? "" : `&cursor=${encodeURIComponent(cursor)}`;
}

/** Those of Headrace's own health that are open. They stand among those of all tenants, for keys that reach them all. */
export async function healthIncidents(signal: AbortSignal): Promise<Incident[]> {
  const found: Incident[] = [];
  let cursor: string | null = null;
  do {
    const page: IncidentList = await getShape(`${ALERTS}/incidents?state=open&limit=500${after(cursor)}`, signal, "incidents");
    found.push(...page.incidents.filter((incident) => incident.condition === null));
    cursor = page.next;
  } while (cursor !== null);
  return found;
}

export function showIncident(id: string, signal: AbortSignal): Promise<IncidentDetail> {
  return getShape(`${ALERTS}/incidents/${segment(id)}`, signal, "transitions");
}

export async function acknowledgeIncident(id: string, signal: AbortSignal): Promise<void> {
  await unlessTooLate(request("POST", `${ALERTS}/incidents/${segment(id)}/acknowledge`, signal));
}

export async function resolveIncident(id: string, signal: AbortSignal): Promise<void> {
  await unlessTooLate(request("POST", `${ALERTS}/incidents/${segment(id)}/resolve`, signal));
}

/** Another person, or the evaluator, did it first: no failure of anybody. */
async function unlessTooLate(asked: Promise<unknown>): Promise<void> {
  try {
    await asked;
  } catch (cause) {
    throw cause instanceof ApiError && cause.status === 409 ? new ApiError("Somebody was faster", cause.detail, 409) : cause;
  }
}

export async function listRules(tenant: Tenant, signal: AbortSignal): Promise<Rule[]> {
  return (await getShape<{ rules: Rule[] }>(`${ALERTS}/rules?${tenantQuery(tenant)}`, signal, "rules")).rules;
}

export type RuleGiven = Partial<RuleFields> & { enabled?: boolean };

export async function addRule(tenant: Tenant, given: RuleGiven, signal: AbortSignal): Promise<void> {
  await request("POST", `${ALERTS}/rules?${tenantQuery(tenant)}`, signal, given);
}

export async function changeRule(id: string, given: RuleGiven, signal: AbortSignal): Promise<void> {
  await request("PATCH", `${ALERTS}/rules/${segment(id)}`, signal, given);
}

export async function removeRule(id: string, signal: AbortSignal): Promise<void> {
  await request("DELETE", `${ALERTS}/rules/${segment(id)}`, signal);
}

export async function listChannels(tenant: Tenant, signal: AbortSignal): Promise<Channel[]> {
  return (await getShape<{ channels: Channel[] }>(`${ALERTS}/channels?${tenantQuery(tenant)}`, signal, "channels")).channels;
}

export interface ChannelGiven {
  name: string;
  type: ChannelType;
  url?: string;
  to?: string[];
  secret?: string;
  health: boolean;
}

export async function addChannel(tenant: Tenant, given: ChannelGiven, signal: AbortSignal): Promise<MadeChannel> {
  return (await request("POST", `${ALERTS}/channels?${tenantQuery(tenant)}`, signal, given)) as MadeChannel;
}

export async function removeChannel(id: string, signal: AbortSignal): Promise<void> {
  await request("DELETE", `${ALERTS}/channels/${segment(id)}`, signal);
}

export async function testChannel(id: string, signal: AbortSignal): Promise<Tested> {
  return (await request("POST", `${ALERTS}/channels/${segment(id)}/test`, signal, undefined, TEST_TIMEOUT_MS)) as Tested;
}

export async function listSilences(tenant: Tenant, signal: AbortSignal): Promise<Silence[]> {
  return (await getShape<{ silences: Silence[] }>(`${ALERTS}/silences?${tenantQuery(tenant)}`, signal, "silences")).silences;
}

export interface SilenceGiven {
  ends_at: string;
  rule_id: string | null;
  queue: string | null;
  reason: string;
}

export async function addSilence(tenant: Tenant, given: SilenceGiven, signal: AbortSignal): Promise<void> {
  await request("POST", `${ALERTS}/silences?${tenantQuery(tenant)}`, signal, given);
}

export async function endSilence(id: string, signal: AbortSignal): Promise<void> {
  await request("DELETE", `${ALERTS}/silences/${segment(id)}`, signal);
}
