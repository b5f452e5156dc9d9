import type { Severity } from "../../apiTypes";

export function SeverityTag({ severity }: { severity: Severity }) {
  return <em class={`tag severity ${severity}`}>{severity}</em>;
}
