/** Which environments there are to choose from. Pure. */
import type { Environment, Tenant } from "./apiTypes";

export type TenantPart = keyof Tenant;

export interface TenantOption {
  name: string;
  /** Where choosing it leads: the environment of that name that is most like the one before. */
  tenant: Tenant;
}

/** The names that can stand in this part, given the parts before it; the current one is always among them. */
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

/** Without one in the URL: where most waits, the likeliest reason for coming. */
export function pickDefaultTenant(environments: readonly Environment[]): Tenant | null {
  const deepest = environments.reduce<Environment | null>((best, each) => (best === null || each.depth > best.depth ? each : best), null);
  return deepest === null ? null : { org: deepest.org, project: deepest.project, env: deepest.env };
}
