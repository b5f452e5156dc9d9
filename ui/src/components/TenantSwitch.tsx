/** Selects for organisation, project and environment. Native selects, for keyboards and phones. */
import type { Environment, Tenant } from "../apiTypes";
import { listOptions, type TenantPart } from "../tenantOptions";

interface Props {
  environments: readonly Environment[];
  tenant: Tenant;
  onPick: (tenant: Tenant) => void;
}

const LABELS: Record<TenantPart, string> = { org: "Organisation", project: "Project", env: "Environment" };

export function TenantSwitch({ environments, tenant, onPick }: Props) {
  return (
    <div class="tenant" role="group" aria-label="Environment" data-testid="tenant">
      {(["org", "project", "env"] as const).map((part) => {
        const options = listOptions(environments, tenant, part);
        return (
          <span key={part} class={`pick${options.length > 1 ? "" : " only"}`}>
            <span aria-hidden="true">{tenant[part]}</span>
            <select
              aria-label={LABELS[part]}
              data-testid={`tenant-${part}`}
              value={tenant[part]}
              onChange={(event) => {
                const chosen = options.find((option) => option.name === event.currentTarget.value);
                if (chosen !== undefined) onPick(chosen.tenant);
              }}
            >
              {options.map((option) => (
                <option key={option.name} value={option.name} selected={option.name === tenant[part]}>
                  {option.name}
                </option>
              ))}
            </select>
          </span>
        );
      })}
    </div>
  );
}
