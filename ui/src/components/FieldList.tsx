/** Facts about one thing, each with its name. */
import type { ComponentChildren } from "preact";

export function Facts({ testId, children }: { testId: string; children: ComponentChildren }) {
  return (
    <dl class="facts-grid" data-testid={testId}>
      {children}
    </dl>
  );
}

export function Fact({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    <div>
      <dt>{label}</dt>
      <dd>{children}</dd>
    </div>
  );
}
