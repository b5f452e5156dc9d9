import { RANGES, type Range } from "../location";

export function RangePicker({ range, onPick }: { range: Range; onPick: (range: Range) => void }) {
  return (
    <fieldset class="range-picker" data-testid="range-picker">
      <legend class="sr-only">Time range</legend>
      {RANGES.map((option) => (
        <label key={option.id} class={option.id === range.id ? "chosen" : ""}>
          <input
            type="radio"
            name="range"
            value={option.id}
            aria-label={`Last ${option.spoken}`}
            checked={option.id === range.id}
            onChange={() => onPick(option)}
          />
          <span aria-hidden="true">{option.label}</span>
        </label>
      ))}
    </fieldset>
  );
}
