/** Options of the tenant switch. Pure. */
import type { Environment, Tenant } from "./apiTypes";

export type TenantPart = keyof Tenant;

export interface TenantOption {
  name: string;
  /** Environment to switch to: the one with this name that is most similar to the current one. */
  tenant: Tenant;
}

/** List the names for one part of the tenant, given the parts before it. The current name is always included. */
export function listOptions(environments: readonly Tenant[], current: Tenant, part: TenantPart): TenantOption[] {
  const above = part === "org" ? [] : part === "project" ? (["org"] as const) : (["org", "project"] as const);
  const found = new Map<string, Tenant>([[current[part], current]]);
  for (const each of environments) {
    if (above.some((name) => each[name] !== current[name])) continue;
    const known = found.get(each[part]);
    if (known === undefined || similarity(each, current) > similarity(known, current)) {
      found.set(each[part], { org: each.org, project: each.project, env: each.env });
    }
  }
  return [...found].map(([name, tenant]) => ({ name, tenant })).sort((a, b) => a.name.localeCompare(b.name));
}

function similarity(a: Tenant, b: Tenant): number {
  return Number(a.project === b.project) + Number(a.env === b.env);
}

/** Pick the environment with the most waiting jobs, for URLs without one; null if there are no environments. */
export function pickDefaultTenant(environments: readonly Environment[]): Tenant | null {
  const deepest = environments.reduce<Environment | null>((best, each) => (best === null || each.depth > best.depth ? each : best), null);
  return deepest === null ? null : { org: deepest.org, project: deepest.project, env: deepest.env };
}
