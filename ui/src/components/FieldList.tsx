/** List of labelled values. */
import type { ComponentChildren } from "preact";

export function FieldList({ testId, children }: { testId: string; children: ComponentChildren }) {
  return (
    <dl class="field-list" data-testid={testId}>
      {children}
    </dl>
  );
}

export function FieldItem({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    <div>
      <dt>{label}</dt>
      <dd>{children}</dd>
    </div>
  );
}
