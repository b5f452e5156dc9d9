import type { ComponentChildren } from "preact";
import mark from "../favicon.svg";

export function TitleBar({ children }: { children: ComponentChildren }) {
  return (
    <header class="titlebar">
      <div class="titlebar-inner">
        <a class="brand" href="/">
          <img src={mark} alt="" width="24" height="24" />
          Headrace
        </a>
        <div class="titlebar-side">{children}</div>
      </div>
    </header>
  );
}
