import type { Severity } from "../../shapes";

export function SeverityTag({ severity }: { severity: Severity }) {
  return <em class={`tag severity ${severity}`}>{severity}</em>;
}
