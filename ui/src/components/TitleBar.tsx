/** Title bar of every page: navigation, and at the right the actions passed as children. */
import type { ComponentChildren } from "preact";
import type { Tenant } from "../apiTypes";
import mark from "../favicon.svg";
import { href, type Page } from "../router";

export interface Badge {
  text: string;
  /** Text for screen readers and on hover. */
  description: string;
  urgent: boolean;
}

const PAGES: readonly { page: Page; label: string; also?: Page["name"] }[] = [
  { page: { name: "overview" }, label: "Overview" },
  { page: { name: "queues" }, label: "Queues", also: "queue" },
  { page: { name: "streams" }, label: "Streams" },
  { page: { name: "alerts" }, label: "Alerts" },
  { page: { name: "dead" }, label: "Dead letters" },
  { page: { name: "autoscaler" }, label: "Autoscaler" },
  { page: { name: "pipeline" }, label: "Pipeline" },
];

interface Props {
  /** Null while signed out: the navigation is hidden. */
  page: Page | null;
  tenant: Tenant | null;
  /** Shown beside the page names. */
  badges?: Partial<Record<Page["name"], Badge>>;
  children: ComponentChildren;
}

export function TitleBar({ page, tenant, badges = {}, children }: Props) {
  return (
    <header class="titlebar">
      <a class="skip" href="#main">
        Skip to content
      </a>
      <div class="titlebar-inner">
        <a class="brand" href={href({ name: "overview" }, tenant)}>
          <img src={mark} alt="" width="24" height="24" />
          Headrace
        </a>
        {page !== null && (
          <nav class="pages" aria-label="Pages">
            {PAGES.map((entry) => {
              const badge = badges[entry.page.name];
              const here = entry.page.name === page.name || entry.also === page.name;
              return (
                <a key={entry.label} href={href(entry.page, tenant)} class={here ? "here" : ""} aria-current={here ? "page" : undefined}>
                  {entry.label}
                  {badge !== undefined && (
                    <span class={`badge${badge.urgent ? " urgent" : ""}`} title={badge.description} data-testid={`badge-${entry.page.name}`}>
                      <span aria-hidden="true">{badge.text}</span>
                      <span class="sr-only">{badge.description}</span>
                    </span>
                  )}
                </a>
              );
            })}
          </nav>
        )}
        <div class="titlebar-side">{children}</div>
      </div>
    </header>
  );
}
