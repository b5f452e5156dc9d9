/** Notices for errors, empty pages and loading pages. */
import type { ComponentChildren } from "preact";
import type { ApiError } from "../http";

export function ErrorNotice({ error, keepsData, onRetry }: { error: ApiError; keepsData: boolean; onRetry: () => void }) {
  return (
    <div class="notice error" role="alert" data-testid="error">
      <div>
        <strong>{error.title}</strong>
        {error.detail !== "" && <p>{error.detail}</p>}
        <p class="quiet">{keepsData ? "Showing the last data received. Retrying automatically." : "Retrying automatically."}</p>
      </div>
      <button type="button" class="button" onClick={onRetry}>
        Retry now
      </button>
    </div>
  );
}

export function EmptyNotice({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <div class="notice" role="status" data-testid="empty">
      <div>
        <strong>{title}</strong>
        <p>{children}</p>
      </div>
    </div>
  );
}

/** Tells that a part of the page is unknown, and why. */
export function UnknownNotice({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <div class="notice" role="status" data-testid="unknown">
      <div>
        <strong>{title}</strong>
        <p>{children}</p>
      </div>
    </div>
  );
}

export function LoadingNotice({ children }: { children: ComponentChildren }) {
  return (
    <div class="notice loading" role="status" data-testid="loading">
      {children}
    </div>
  );
}
