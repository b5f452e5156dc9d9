/** A number that nobody knows: said in a word, never as 0, with the reason on hover. */
export function UnknownValue({ reason }: { reason: string | null }) {
  return (
    <span class="zero" data-testid="unknown" title={reason ?? "Not measured."}>
      unknown
    </span>
  );
}
