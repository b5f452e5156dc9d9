/** Button that loads the next page of a list, and its error. */
import type { PageLoader } from "../pagination";

export function MoreButton({ more, children }: { more: PageLoader<unknown>; children: string }) {
  return (
    <>
      {more.next !== null && (
        <button type="button" class="button more" disabled={more.busy} onClick={more.load} data-testid="more">
          {more.busy ? "Loading…" : children}
        </button>
      )}
      {more.error !== null && (
        <p class="failure list-note" role="alert">
          {more.error.title}. {more.error.detail}
        </p>
      )}
    </>
  );
}
