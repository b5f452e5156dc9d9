/** Placeholder for an unknown number, with the reason on hover. Unknown is never shown as 0. */
export function UnknownValue({ reason }: { reason: string | null }) {
  return (
    <span class="zero" data-testid="unknown" title={reason ?? "Not measured."}>
      unknown
    </span>
  );
}
