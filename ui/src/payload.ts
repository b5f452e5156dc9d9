import type { Payload } from "./apiTypes";

/** Whole JSON with line breaks; what is cut, or is none, as it came. */
export function formatPayload(payload: Payload): string {
  if (payload.encoding !== "text" || payload.cut) return payload.preview;
  try {
    return JSON.stringify(JSON.parse(payload.preview), null, 2);
  } catch {
    return payload.preview;
  }
}
