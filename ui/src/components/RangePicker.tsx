/** Time range picker: presets, or custom start and end times. */
import { useState } from "preact/hooks";
import { formatDayTime, formatUtcTime } from "../format";
import { type Interval, LONGEST_S, PRESETS, type Range, SHORTEST_S } from "../range";

interface Props {
  range: Range;
  onPick: (range: Range) => void;
}

export function RangePicker({ range, onPick }: Props) {
  const [open, setOpen] = useState(false);
  const custom = range.kind === "between";
  return (
    <div class="range">
      <fieldset class="range-picker" data-testid="range-picker">
        <legend class="sr-only">Time range</legend>
        {PRESETS.map((preset) => {
          const chosen = !custom && preset.id === range.preset.id;
          return (
            <label key={preset.id} class={chosen ? "chosen" : ""}>
              <input
                type="radio"
                name="range"
                value={preset.id}
                aria-label={`Last ${preset.spoken}`}
                checked={chosen}
                onChange={() => {
                  setOpen(false);
                  onPick({ kind: "last", preset });
                }}
              />
              <span aria-hidden="true">{preset.label}</span>
            </label>
          );
        })}
        <button
          type="button"
          class={custom ? "chosen" : ""}
          aria-expanded={open}
          aria-controls="custom-range"
          data-testid="custom-range"
          onClick={() => setOpen(!open)}
        >
          Custom
        </button>
      </fieldset>
      {custom && !open && (
        <p class="quiet between" data-testid="between">
          <time title={formatUtcTime(range.start)}>{formatDayTime(range.start)}</time> – <time title={formatUtcTime(range.end)}>{formatDayTime(range.end)}</time>
        </p>
      )}
      {open && (
        <CustomRange
          from={custom ? range : lastSeconds(range.preset.seconds)}
          onApply={(chosen) => {
            setOpen(false);
            onPick({ kind: "between", ...chosen });
          }}
        />
      )}
    </div>
  );
}

function CustomRange({ from, onApply }: { from: Interval; onApply: (range: Interval) => void }) {
  const [start, setStart] = useState(() => localInput(from.start));
  const [end, setEnd] = useState(() => localInput(from.end));
  const chosen = { start: Date.parse(start) / 1000, end: Math.min(Date.parse(end), Date.now()) / 1000 };
  const span = chosen.end - chosen.start;
  const error = !(span >= SHORTEST_S) ? "Start must be at least 30 s before end, and both must be in the past." : span > LONGEST_S ? "History is kept for 400 days." : "";
  return (
    <form
      id="custom-range"
      class="custom-range"
      onSubmit={(event) => {
        event.preventDefault();
        if (error === "") onApply(chosen);
      }}
    >
      <label>
        From
        <input type="datetime-local" step="1" required value={start} onInput={(event) => setStart(event.currentTarget.value)} />
      </label>
      <label>
        To
        <input type="datetime-local" step="1" required value={end} onInput={(event) => setEnd(event.currentTarget.value)} />
      </label>
      <button type="submit" class="button" disabled={error !== ""}>
        Apply
      </button>
      {error !== "" && <p role="alert">{error}</p>}
    </form>
  );
}

function lastSeconds(seconds: number): Interval {
  const end = Math.floor(Date.now() / 1000);
  return { start: end - seconds, end };
}

/** Format a time for a datetime-local field: the viewer's local time, without a zone. */
function localInput(epochSeconds: number): string {
  const offsetMs = new Date(epochSeconds * 1000).getTimezoneOffset() * 60_000;
  return new Date(epochSeconds * 1000 - offsetMs).toISOString().slice(0, 19);
}
