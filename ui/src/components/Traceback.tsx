/** Full text of the error that a task raised. */
export function Traceback({ text }: { text: string | null }) {
  if (text === null) return <pre class="code" aria-busy="true" />;
  return (
    <pre class="code traceback" tabIndex={0} aria-label="Traceback" data-testid="traceback">
      {text.trimEnd()}
    </pre>
  );
}
