/** List entry with a title, actions, and details below. */
import type { ComponentChildren } from "preact";

interface Props {
  title: ComponentChildren;
  actions?: ComponentChildren;
  testId: string;
  faded?: boolean;
  children: ComponentChildren;
}

export function ListItem({ title, actions, testId, faded = false, children }: Props) {
  return (
    <li class={`item${faded ? " faded" : ""}`} data-testid={testId}>
      <div class="item-head">
        <div class="item-title">{title}</div>
        <div class="actions">{actions}</div>
      </div>
      <div class="quiet facts">{children}</div>
    </li>
  );
}
