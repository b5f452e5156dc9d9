/**
 * Numbers and times in human units. Pure; an unknown value is a dash, never a zero.
 * Short forms are for display, `formatExact` is for hover texts.
 */

export const UNKNOWN = "–";

const COUNT_UNITS = ["", "k", "M", "G", "T"] as const;
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB"] as const;

/** Format a count: 0.4, 12, 950, 1.2k, 34k, 5.6M: at most four characters before the unit. */
export function formatCount(value: number | null): string {
  if (value === null || !Number.isFinite(value)) return UNKNOWN;
  const sign = value < 0 ? "−" : "";
  let size = Math.abs(value);
  let unit = 0;
  // 999.5 would be rounded to "1000", so it already belongs to the next unit.
  while (size >= 999.5 && unit < COUNT_UNITS.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${sign}${shortNumber(size)}${COUNT_UNITS[unit] ?? ""}`;
}

/** Format a rate per second: 0, <0.01, 0.25, 3.1, 42, 1.2k. */
export function formatRate(perSecond: number | null): string {
  if (perSecond === null || !Number.isFinite(perSecond)) return UNKNOWN;
  if (perSecond > 0 && perSecond < 0.01) return "<0.01";
  if (perSecond < 1) return trimZeros(perSecond.toFixed(2));
  return formatCount(perSecond);
}

/** Format a size: 0 B, 512 B, 1.5 KiB, 34 MiB: powers of 1024, as limits are given. */
export function formatBytes(bytes: number | null): string {
  if (bytes === null || !Number.isFinite(bytes)) return UNKNOWN;
  let size = Math.max(0, bytes);
  let unit = 0;
  while (size >= 1023.5 && unit < BYTE_UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(size) : shortNumber(size)} ${BYTE_UNITS[unit] ?? ""}`;
}

/** Format a share between 0 and 1 as a percentage. A small share above zero never reads 0 %. */
export function formatShare(share: number | null): string {
  if (share === null || !Number.isFinite(share)) return UNKNOWN;
  const percent = share * 100;
  if (percent > 0 && percent < 0.1) return "<0.1 %";
  if (percent < 10) return `${trimZeros(percent.toFixed(1))} %`;
  // 99.7 % must not read as 100 %.
  return `${percent < 100 && percent > 99 ? trimZeros((Math.floor(percent * 10) / 10).toFixed(1)) : Math.round(percent)} %`;
}

/** Format a duration: 340 ms, 1.5 s, 42 s, 3 min 20 s, 2 h 5 min, 4 d 6 h. */
export function formatDuration(ms: number | null): string {
  if (ms === null || !Number.isFinite(ms)) return UNKNOWN;
  const clamped = Math.max(0, ms);
  if (clamped < 999.5) return `${Math.round(clamped)} ms`;
  if (clamped < 9_950) return `${trimZeros((clamped / 1000).toFixed(1))} s`;
  const seconds = Math.round(clamped / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return twoUnits(seconds, 60, "min", "s");
  if (seconds < 86_400) return twoUnits(Math.floor(seconds / 60), 60, "h", "min");
  return twoUnits(Math.floor(seconds / 3600), 24, "d", "h");
}

/** Format an age in whole units, for a text that changes every second: "just now", "12 s ago", "3 min ago". */
export function formatAgo(ms: number): string {
  const seconds = Math.floor(Math.max(0, ms) / 1000);
  if (seconds < 1) return "just now";
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  return `${Math.floor(seconds / 3600)} h ago`;
}

// Created once: constructing a formatter is expensive.
const EXACT = new Intl.NumberFormat(undefined, { maximumFractionDigits: 3 });
const MINUTES = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const SECONDS = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAYS = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });

/** Format an exact number with grouped digits, for hover texts. */
export function formatExact(value: number | null): string {
  return value === null || !Number.isFinite(value) ? "unknown" : EXACT.format(value);
}

/** Format a count with its noun: "1 row", "2 rows", "3 classes". */
export function formatPlural(count: number, word: string): string {
  return `${formatExact(count)} ${word}${count === 1 ? "" : word.endsWith("s") ? "es" : "s"}`;
}

/** Format a time of day in the viewer's zone and locale. */
export function formatTimeOfDay(epochSeconds: number, withSeconds: boolean): string {
  return (withSeconds ? SECONDS : MINUTES).format(epochSeconds * 1000);
}

/** Format day and time in the viewer's zone; the day is omitted if it is today. */
export function formatDayTime(epochSeconds: number, now: number = Date.now() / 1000): string {
  const at = new Date(epochSeconds * 1000);
  const time = formatTimeOfDay(epochSeconds, true);
  return at.toDateString() === new Date(now * 1000).toDateString() ? time : `${formatMonthDay(epochSeconds)}, ${time}`;
}

export function formatMonthDay(epochSeconds: number): string {
  return DAYS.format(epochSeconds * 1000);
}

/** Format a time in UTC, for hover texts: "2026-11-15 20:00:05 UTC". */
export function formatUtcTime(epochSeconds: number): string {
  return `${new Date(epochSeconds * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

function shortNumber(size: number): string {
  if (size < 9.95) return trimZeros(size.toFixed(1));
  return String(Math.round(size));
}

function twoUnits(total: number, per: number, bigName: string, smallName: string): string {
  const big = Math.floor(total / per);
  const small = total % per;
  return small === 0 ? `${big} ${bigName}` : `${big} ${bigName} ${small} ${smallName}`;
}

function trimZeros(digits: string): string {
  return digits.includes(".") ? digits.replace(/\.?0+$/, "") : digits;
}
