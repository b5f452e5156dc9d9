/** Durations as typed in forms: "30 s", "5 min", "1 h 30 min". Pure. */

const UNITS: readonly (readonly [name: string, ms: number])[] = [
  ["d", 86_400_000],
  ["h", 3_600_000],
  ["min", 60_000],
  ["s", 1000],
  ["ms", 1],
];
const UNIT_MS: Record<string, number> = { ...Object.fromEntries(UNITS), m: 60_000 };
const PART = /(\d+(?:\.\d+)?)\s*(ms|min|[smhd])/gi;

/** Parse a duration into ms; null if it is invalid. A number without a unit is invalid, because it is ambiguous. */
export function parseDuration(text: string): number | null {
  const parts = [...text.matchAll(PART)];
  if (parts.length === 0 || text.replace(PART, "").trim() !== "") return null;
  return parts.reduce((sum, [, amount, unit]) => sum + Number(amount) * (UNIT_MS[(unit ?? "").toLowerCase()] ?? 0), 0);
}

/** Format a duration without rounding, in the largest unit that needs no fraction. */
export function formatExactDuration(ms: number): string {
  const [name, size] = UNITS.find(([, length]) => ms >= length && ms % length === 0) ?? (ms === 0 ? ["s", 1] : ["ms", 1]);
  return `${ms / size} ${name}`;
}
