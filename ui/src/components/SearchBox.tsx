/** Search field that applies its value on Enter. The draft is local state, because the page re-renders every few seconds and must not discard it. */
import { useEffect, useState } from "preact/hooks";

interface Props {
  label: string;
  placeholder: string;
  value: string;
  onEnter: (value: string) => void;
  testId: string;
  small?: boolean;
}

export function SearchBox({ label, placeholder, value, onEnter, testId, small = false }: Props) {
  const [draft, setDraft] = useState(value);
  useEffect(() => setDraft(value), [value]);
  return (
    <input
      type="search"
      class={`search${small ? " small" : ""}`}
      placeholder={placeholder}
      aria-label={label}
      value={draft}
      data-testid={testId}
      onInput={(event) => setDraft(event.currentTarget.value)}
      onChange={(event) => onEnter(event.currentTarget.value)}
    />
  );
}
