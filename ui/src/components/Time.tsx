/** A time in the viewer's zone, with UTC on hover. */
import { formatDayTime, formatUtcTime, UNKNOWN } from "../format";

export function Time({ iso }: { iso: string | null }) {
  if (iso === null) return <span>{UNKNOWN}</span>;
  const at = Date.parse(iso) / 1000;
  return (
    <time dateTime={iso} title={formatUtcTime(at)}>
      {formatDayTime(at)}
    </time>
  );
}
