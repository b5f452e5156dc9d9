/** Preview of a job's payload. JSON is indented; anything else is shown unchanged. */
import type { Payload } from "../apiTypes";
import { formatBytes, formatExact } from "../format";
import { formatPayload } from "../payload";

export function PayloadView({ payload }: { payload: Payload }) {
  return (
    <div class="payload">
      <h3>
        Payload{" "}
        <span class="quiet" title={`${formatExact(payload.bytes)} bytes`}>
          {formatBytes(payload.bytes)}
          {payload.encoding === "base64" && ", shown as base64"}
          {payload.cut && ", truncated"}
        </span>
      </h3>
      {payload.bytes > 0 && (
        <pre class="code" tabIndex={0} aria-label="Payload" data-testid="payload">
          {formatPayload(payload)}
        </pre>
      )}
    </div>
  );
}
