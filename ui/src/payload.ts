import type { Payload } from "./apiTypes";

/** Indent a complete JSON payload; return truncated or other payloads unchanged. */
export function formatPayload(payload: Payload): string {
  if (payload.encoding !== "text" || payload.cut) return payload.preview;
  try {
    return JSON.stringify(JSON.parse(payload.preview), null, 2);
  } catch {
    return payload.preview;
  }
}
