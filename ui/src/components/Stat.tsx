/** Summary numbers: the short form as text, the exact value on hover, and a note below. */
import type { ComponentChildren } from "preact";
import { UNKNOWN } from "../format";

export function StatRow({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    <dl class="stats" aria-label={label}>
      {children}
    </dl>
  );
}

interface Props {
  name: string;
  label: string;
  value: string;
  suffix?: string;
  title: string;
  tone?: "plain" | "bad" | "warn";
  /** Sparkline. It reserves its space from the first render, so that nothing moves when data arrives. */
  trend?: ComponentChildren;
  children: ComponentChildren;
}

export function Stat({ name, label, value, suffix = "", title, tone = "plain", trend, children }: Props) {
  return (
    <div class={`stat ${tone}${value === UNKNOWN ? " unknown" : ""}`}>
      <dt>{label}</dt>
      <dd>
        <span class="number" title={title}>
          <span data-testid={`figure-${name}`}>{value}</span>
          {suffix !== "" && <small>{suffix}</small>}
        </span>
        <span class="note">{children}</span>
        {trend}
      </dd>
    </div>
  );
}
