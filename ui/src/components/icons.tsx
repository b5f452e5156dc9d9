/** Inline SVG icons, so that neither a font nor another host is needed. */

export function PauseIcon({ paused }: { paused: boolean }) {
  return (
    <svg viewBox="0 0 12 12" width="10" height="10" aria-hidden="true" fill="currentColor">
      {paused ? <path d="M2.5 1v10l8-5z" /> : <path d="M2 1h3v10H2zM7 1h3v10H7z" />}
    </svg>
  );
}

export function SignOutIcon() {
  return (
    <svg viewBox="0 0 12 12" width="10" height="10" aria-hidden="true" fill="none" stroke="currentColor" stroke-width="1.6">
      <path d="M5 1H1v10h4M4 6h7M8.5 3.5 11 6 8.5 8.5" />
    </svg>
  );
}
